"""Requests that come before their turn: the ones ahead of them are answered whatever becomes of them."""

import asyncio
from pathlib import Path

import pytest

from gateway.http import hot
from tests.gateway.http.edges import Writer, backend, edge, question, until, whole

pytestmark = pytest.mark.anyio

CHAT = b'{"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}'


async def slowly(body: bytes, writer: Writer) -> None:
    await asyncio.sleep(0.8)
    writer.write(whole(CHAT))


@pytest.mark.parametrize(
    ("rest", "statuses"),
    [
        pytest.param(None, [b"200", b"400"], id="half a body"),
        pytest.param(b"zz\r\n", [b"200", b"400"], id="a body that is none"),
        pytest.param(b"5\r\n{    \r\n0\r\n\r\n", [b"200", b"400"], id="a body that is wrong"),
    ],
)
async def test_a_body_before_its_turn_cuts_nobody_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: bytes | None, statuses: list[bytes]
) -> None:
    monkeypatch.setattr(hot, "BODY_S", 0.3)
    monkeypatch.setattr(hot.HotProtocol, "head_s", 0.2)
    async with backend(slowly) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        first = running.request(question())
        chunked = running.request(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        writer.write(first + (running.request(question())[:-3] if rest is None else chunked + rest))
        raw = await asyncio.wait_for(reader.read(), 60)
        assert [part.split()[0] for part in raw.split(b"HTTP/1.1 ")[1:]] == statuses
        await until(lambda: not running.server.server_state.connections)
        writer.close()
