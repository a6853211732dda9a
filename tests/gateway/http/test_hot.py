"""The hot routes at the socket: framing, pipelining, smuggling, hang-ups, and what is left behind (nothing)."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

from gateway.billing.settlement_worker import Booked
from gateway.http import hot
from tests.gateway.http.edges import (
    DONE,
    SSE,
    Answered,
    Edge,
    Writer,
    backend,
    chunk,
    edge,
    question,
    said,
    until,
    whole,
)

pytestmark = pytest.mark.anyio

ANSWER = json.dumps({"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}).encode()


async def answer_at_once(body: bytes, writer: Writer) -> None:
    if b'"stream": true' in body:
        writer.write(SSE + chunk(said("one")) + chunk(said("two", "stop")) + chunk(DONE) + b"0\r\n\r\n")
    else:
        writer.write(whole(ANSWER))


async def never_end(body: bytes, writer: Writer) -> None:
    if b'"stream": true' in body:
        writer.write(SSE + chunk(said("one")))
    await asyncio.Event().wait()


def in_flight(running: Edge) -> int:
    record = running.services.health.of("pool:first")
    return running.services.admission.in_flight + record.in_flight + len(running.server.server_state.tasks)


async def test_requests_of_one_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    async with backend(answer_at_once) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        stream, plain = running.request(question(stream=True)), running.request(question())
        wrong = running.request(b"{")
        last = running.request(question(), b"connection: close\r\n")
        writer.write(plain + stream + get + wrong + stream + get + last)
        raw = await asyncio.wait_for(reader.read(), 60)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", raw)
        assert statuses == [b"200", b"200", b"200", b"400", b"200", b"200", b"200"]
        assert raw.count(DONE) == 2
        assert raw.endswith(ANSWER)
        # One after the other: the same connection serves them all.
        assert desk.connections == 1
        writer.close()


async def test_a_body_may_come_in_any_pieces(tmp_path: Path) -> None:
    async with backend(answer_at_once) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        raw = running.request(question(), b"connection: close\r\n")
        for at in range(0, len(raw), 7):
            writer.write(raw[at : at + 7])
            await asyncio.sleep(0)
        assert Answered.read_from(await asyncio.wait_for(reader.read(), 60)).content == ANSWER
        assert json.loads(desk.requests[0]) == json.loads(question())
        writer.close()


LENGTHS = {
    "both": (b"content-length: 5\r\ntransfer-encoding: chunked", b"400"),
    "both, turned round": (b"transfer-encoding: chunked\r\ncontent-length: 5", b"400"),
    "two": (b"content-length: 5\r\ncontent-length: 6", b"400"),
    "with a sign": (b"content-length: +5", b"400"),
    "coded twice": (b"transfer-encoding: gzip, chunked", b"400"),
    "coded not at all": (b"transfer-encoding: identity", b"400"),
    "a space before the colon": (b"content-length : 5", b"400"),
    "too long": (b"content-length: 999999999", b"413"),
}


async def test_a_length_that_could_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    async with edge(tmp_path) as running:
        request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n%b\r\n\r\n"
        for name, (head, status) in LENGTHS.items():
            reader, writer = await running.connect()
            writer.write(request % (running.key.encode(), head) + b"0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n")
            raw = await asyncio.wait_for(reader.read(), 60)
            assert raw.startswith(b"HTTP/1.1 " + status), name
            assert raw.count(b"HTTP/1.1") == 1, name
            assert b"x-request-id: req_" in raw, name
            writer.close()


async def test_who_has_no_key_is_told_before_the_body(tmp_path: Path) -> None:
    async with edge(tmp_path) as running:
        for header in (b"x: y", b"authorization: Bearer mr-wrong", b"x-api-key: mr-wrong"):
            reader, writer = await running.connect()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%b\r\ncontent-length: 8000000\r\n\r\n"
            writer.write(head % header)
            assert Answered.read_from(await asyncio.wait_for(reader.read(), 60)).status == 401
            writer.close()


async def test_either_header_carries_the_key(tmp_path: Path) -> None:
    async with backend(answer_at_once) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        body = question()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: %b\r\nexpect: 100-continue\r\n"
        writer.write(head % running.key.encode() + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answered = Answered.read_from(await asyncio.wait_for(reader.read(), 60))
        assert answered.content == ANSWER
        assert answered.headers["connection"] == "close"
        writer.close()


async def test_an_old_client_gets_a_stream_without_chunks(tmp_path: Path) -> None:
    async with backend(answer_at_once) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        writer.write(running.request(question(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answered = Answered.read_from(await asyncio.wait_for(reader.read(), 60))
        assert "transfer-encoding" not in answered.headers
        assert answered.content == said("one") + said("two", "stop") + DONE
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_frees_everything(tmp_path: Path, stream: bool) -> None:
    async with backend(never_end) as desk, edge(tmp_path, desk.base_url) as running:
        clients = [await running.connect() for _ in range(100)]
        for reader, writer in clients:
            writer.write(running.request(question(stream=stream)))
            if stream:
                await reader.readuntil(b"\n\n")
        await until(lambda: len(desk.requests) == 100, 60)
        for _, writer in clients:
            writer.close()
        await until(lambda: in_flight(running) == 0)
        await until(lambda: desk.open == 0)


async def test_who_hangs_up_in_the_middle_of_a_body_leaves_nothing(tmp_path: Path) -> None:
    async with edge(tmp_path) as running:
        for cut in (30, 150, 200):
            _, writer = await running.connect()
            writer.write(running.request(question())[:cut])
            await asyncio.sleep(0.02)
            writer.close()
        await until(lambda: not running.server.server_state.connections)
        assert in_flight(running) == 0


async def test_a_client_that_does_not_read_holds_its_backend_back(tmp_path: Path) -> None:
    """What it does not take stays at the backend, not in our memory."""
    sent = 0

    async def pour(body: bytes, writer: Writer) -> None:
        nonlocal sent
        writer.write(SSE)
        for _ in range(4000):
            writer.write(chunk(said("x" * 16_000)))
            await writer.drain()
            sent += 16_000
        writer.write(chunk(said("", "stop")) + chunk(DONE) + b"0\r\n\r\n")

    async with backend(pour) as desk, edge(tmp_path, desk.base_url) as running:
        reader, writer = await running.connect()
        writer.write(running.request(question(stream=True), b"connection: close\r\n"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        assert sent < 30_000_000
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        raw = bytearray()
        while part := await asyncio.wait_for(reader.read(2**20), 60):
            raw += part
        assert bytes(raw[-200:]).count(DONE) == 1
        assert len(raw) > 4000 * 16_000
        writer.close()


async def test_a_body_that_does_not_come_ends_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "BODY_S", 0.3)
    monkeypatch.setattr(hot.HotProtocol, "head_s", 0.2)
    async with edge(tmp_path) as running:
        reader, writer = await running.connect()
        writer.write(running.request(question())[:-3])
        answered = Answered.read_from(await asyncio.wait_for(reader.read(), 60))
        assert answered.status == 400
        assert "did not arrive" in answered.error["message"]
        writer.close()


async def test_a_stop_waits_for_answers_and_not_for_requests(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def wait(body: bytes, writer: Writer) -> None:
        await go_on.wait()
        writer.write(whole(ANSWER))

    async with backend(wait) as desk, edge(tmp_path, desk.base_url) as running:
        asking = asyncio.create_task(running.ask())
        _, halfway = await running.connect()
        halfway.write(running.request(question())[:-3])
        await until(lambda: len(desk.requests) == 1 and len(running.server.server_state.connections) == 2)
        running.server.should_exit = True
        await until(lambda: len(running.server.server_state.connections) == 1)
        go_on.set()
        assert (await asking).content == ANSWER
        halfway.close()


async def test_the_ledger_knows_of_which_trace_a_request_is_also_where_its_head_repeats(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with backend(answer_at_once) as desk, edge(tmp_path, desk.base_url) as running:
        booked: list[Booked] = []
        bookkeeper = running.services.bookkeeper
        bookkeeper._witnesses = (*bookkeeper._witnesses, booked.extend)
        reader, writer = await running.connect()
        for number in range(1, 3):
            writer.write(running.request(question(), b"traceparent: %s\r\n" % parent.encode()))
            await asyncio.wait_for(reader.readuntil(ANSWER), 60)
            await until(partial(lambda number: len(booked) == number, number))
        writer.close()
        assert [ended.traceparent for ended, _ in booked] == [parent, parent]
