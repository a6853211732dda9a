"""A proxy's word for who asks is taken where the proxy is trusted, and makes no difference where it is not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.http.hot import HotProtocol
from gateway.settings import Settings
from runtime.http.proxies import TrustedProxies
from tests.gateway.http.edges import Answered, Edge, backend, question, whole
from tests.gateway.requests.roads import ANSWER, road

pytestmark = pytest.mark.anyio

NETWORKS = Settings(server={"trusted_proxies": ["10.0.0.0/8", "2001:db8::/32"]}).server.trusted_proxies
MAPPED = Settings(server={"trusted_proxies": ["::ffff:10.0.0.0/104"]}).server.trusted_proxies
PEER = "10.0.0.1"
TRUSTED: dict[str, Any] = {"server": {"trusted_proxies": ["127.0.0.1/32"]}}
LIMITED: dict[str, Any] = {"identity": {"wrong_keys_per_minute": 2}}


@pytest.mark.parametrize(
    ("fields", "caller"),
    [
        ([], PEER),
        ([("x-forwarded-for", "203.0.113.7")], "203.0.113.7"),
        # What the caller sent, and what two trusted proxies wrote behind it.
        ([("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.9.9.9")], "203.0.113.7"),
        ([("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.7:4711")], "203.0.113.7"),
        ([("x-forwarded-for", "10.1.1.1, 10.2.2.2")], "10.1.1.1"),
        ([("x-forwarded-for", "::ffff:203.0.113.7")], "203.0.113.7"),
        ([("forwarded", 'for=1.1.1.1, For="[2001:dead::1]:4711";proto=https;by=10.1.1.1')], "2001:dead::1"),
        ([("forwarded", 'for="[2001:dead::1]", for=10.2.2.2')], "2001:dead::1"),
        # Nobody knows what was before a hop that hides itself.
        ([("x-forwarded-for", "1.1.1.1, unknown, 10.2.2.2")], "10.2.2.2"),
        ([("x-forwarded-for", "")], PEER),
        ([("forwarded", ";;,=,for")], PEER),
        ([("x-forwarded-for", "203.0.113.7,, ,")], "203.0.113.7"),
        # A proxy that writes the one passes the other on as it came.
        ([("x-forwarded-for", "203.0.113.7"), ("forwarded", "for=1.1.1.1")], "203.0.113.7"),
        ([("x-forwarded-for", ""), ("forwarded", "for=1.1.1.1")], PEER),
        # Nobody stands behind so many.
        ([("x-forwarded-for", "203.0.113.7" + ", 10.1.1.1" * 31)], "203.0.113.7"),
        ([("x-forwarded-for", "203.0.113.7" + ", 10.1.1.1" * 32)], "10.1.1.1"),
        ([("x-forwarded-for", "," * 60_000 + "203.0.113.7")], "203.0.113.7"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxys_is_the_callers(
    fields: list[tuple[str, str]], caller: str
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields]
    assert TrustedProxies(NETWORKS).caller(PEER, raw) == caller
    assert TrustedProxies(NETWORKS).caller("192.0.2.1", raw) == "192.0.2.1"
    assert TrustedProxies(()).caller(PEER, raw) == PEER


def test_a_network_inside_of_the_sixth_version_is_that_of_the_fourth() -> None:
    assert [str(network) for network in MAPPED] == ["10.0.0.0/8"]


async def wrong_key(running: Edge, forwarded: str, path: str) -> int:
    """The status that a wrong key gets."""
    reader, writer = await running.connect()
    head = f"host: x\r\nauthorization: Bearer wrong\r\nx-forwarded-for: {forwarded}\r\nconnection: close\r\n"
    method = "POST" if path.endswith("completions") else "GET"
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}content-length: 0\r\n\r\n".encode())
    answered = Answered.read_from(await asyncio.wait_for(reader.read(), 60))
    writer.close()
    return answered.status


async def test_wrong_keys_count_by_the_callers_address(tmp_path: Path) -> None:
    async with road(tmp_path, **TRUSTED, **LIMITED) as running:
        for path in ("/v1/chat/completions", "/v1/files"):
            assert await wrong_key(running, "203.0.113.7", path) == 401
        # Whatever is put before it, it is the same caller, on every route.
        for path in ("/v1/chat/completions", "/v1/models", "/v1/files", "/admin/keys"):
            assert await wrong_key(running, "1.1.1.1, 203.0.113.7", path) == 429
            assert await wrong_key(running, f"203.0.113.7, 198.51.100.{len(path)}", path) == 401


async def test_an_untrusted_proxy_changes_nothing(tmp_path: Path) -> None:
    async with road(tmp_path, **LIMITED) as running:
        statuses = [
            await wrong_key(running, f"203.0.113.{number}", path)
            for number, path in enumerate(
                ("/v1/chat/completions", "/v1/files", "/v1/chat/completions", "/v1/models")
            )
        ]
        assert statuses == [401, 401, 429, 429]


@pytest.mark.parametrize(("settings", "is_https"), [(TRUSTED, True), ({}, False)])
async def test_the_scheme_is_the_callers_where_the_proxy_is_trusted(
    tmp_path: Path, settings: dict[str, Any], is_https: bool
) -> None:
    async with road(tmp_path, **settings) as running:
        reader, writer = await running.connect()
        form = b"key=" + running.key.encode()
        head = b"POST /console/login HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\nconnection: close\r\n"
        kind = b"content-type: application/x-www-form-urlencoded\r\n"
        writer.write(head + kind + b"content-length: %d\r\n\r\n%b" % (len(form), form))
        answered = Answered.read_from(await asyncio.wait_for(reader.read(), 60))
        writer.close()
        assert ("secure" in answered.headers["set-cookie"].lower()) is is_https


async def test_the_access_log_names_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(ANSWER))

    repeats: list[bytes] = []
    repeat = HotProtocol._repeat

    def noting(protocol: HotProtocol, body: bytes) -> None:
        repeats.append(body)
        repeat(protocol, body)

    monkeypatch.setattr(HotProtocol, "_repeat", noting)
    async with backend(answer) as one, road(tmp_path, one.base_url, **TRUSTED) as running:
        reader, writer = await running.connect()
        # The first one's key is looked up, the second one's head is kept, the third one's is not parsed again.
        for _ in range(3):
            writer.write(running.request(question(), b"x-forwarded-for: 1.1.1.1, 203.0.113.7\r\n"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert json.loads(
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
            )
        writer.close()
    # The last lines are written at the end.
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith('{"event":')]
    assert [line["address"] for line in lines if line["event"] == "request"] == ["203.0.113.7"] * 3
    assert repeats == [question()]
