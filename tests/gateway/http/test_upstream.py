"""Backends that break off, babble, stall or never stop: a status or an error event, and nothing held."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai import read_request
from gateway.errors import LaneBusy, LaneUnreachable
from gateway.lanes.base import Call, Offer
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from runtime.http import client
from runtime.sse import EVENT_BYTES_MAX
from tests.gateway.http.edges import (
    DONE,
    SSE,
    Answers,
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

TEXT = said("one") + said("two", "stop") + DONE
BUSY = b'{"error": {"message": "no room", "code": "full"}}'
CHAT = json.dumps({"choices": [{"index": 0, "message": {"content": "ok"}}]}).encode()
END = b"0\r\n\r\n"


def writes(*parts: bytes, closes: bool = False) -> Answers:
    async def answer(body: bytes, writer: Writer) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        if closes:
            writer.close()

    return answer


async def good(body: bytes, writer: Writer) -> None:
    writer.write(SSE + chunk(TEXT) + END if b'"stream": true' in body else whole(CHAT))


def is_idle(running: Edge) -> bool:
    record = running.services.health.of("pool:first")
    return running.services.admission.in_flight + record.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(writes(closes=True), id="nothing"),
        pytest.param(writes(b"220 mail.example ESMTP\r\n"), id="no HTTP"),
        pytest.param(writes(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000), id="a header without an end"),
        pytest.param(writes(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n"), id="a thousand headers"),
        pytest.param(writes(b"HTTP/1.1 101 Switching\r\n\r\n"), id="another protocol"),
        pytest.param(writes(b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"), id="a redirect"),
        pytest.param(writes(whole(BUSY)), id="200 with an error body"),
        pytest.param(writes(SSE + chunk(b"data: " + BUSY + b"\n\n") + END), id="an error as the first event"),
        pytest.param(writes(SSE + END), id="an empty body"),
        pytest.param(writes(whole(CHAT)[:-5], closes=True), id="cut short"),
        pytest.param(writes(SSE + b"zz\r\n"), id="a chunk of no size"),
        pytest.param(writes(SSE + chunk(b"data: {<html>\n\n") + END), id="garbage events alone"),
    ],
)
async def test_what_does_not_begin_to_answer_is_replaced(tmp_path: Path, answer: Answers, stream: bool) -> None:
    async with (
        backend(answer) as bad,
        backend(good) as well,
        edge(tmp_path, bad.base_url, well.base_url) as running,
    ):
        for _ in range(4):
            answered = await running.ask(stream=stream)
            assert answered.status == 200
            assert answered.content == (TEXT if stream else CHAT)
        assert bad.requests
        assert is_idle(running)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(writes(SSE, chunk(said("one")), closes=True), "was interrupted", id="the connection ends"),
        pytest.param(writes(SSE, chunk(said("one")), END), "in the middle", id="the body ends"),
        pytest.param(writes(SSE, chunk(said("one")), b"zz"), "was interrupted", id="no chunk"),
        pytest.param(
            writes(SSE, chunk(said("one")), *[chunk(b"x" * 2**20)] * 6),
            "longer than",
            id="an event without an end",
        ),
    ],
)
async def test_what_breaks_off_says_so(tmp_path: Path, answer: Answers, words: str) -> None:
    async with backend(answer) as bad, edge(tmp_path, bad.base_url) as running:
        answered = await running.ask(stream=True)
        assert answered.status == 200
        assert answered.content.startswith(said("one"))
        assert words in answered.error["message"]
        assert answered.error["code"] == "upstream_broke_off"
        assert b"[DONE]" not in answered.content
        await until(lambda: is_idle(running) and bad.open == 0)


@pytest.mark.parametrize(
    ("patience", "parts", "status"),
    [
        ("first_byte_s", (b"HTTP/1.1 200 OK\r\n",), 504),
        ("first_byte_s", (SSE,), 504),
        ("silence_s", (SSE, chunk(said("one"))), 200),
        ("total_s", (SSE, *[chunk(said("tick"))] * 200), 200),
    ],
)
async def test_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: str, parts: tuple[bytes, ...], status: int
) -> None:
    short: dict[str, Any] = {patience: 0.4}
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.05)

    async def stall(body: bytes, writer: Writer) -> None:
        await writes(*parts)(body, writer)
        await asyncio.Event().wait()

    async with backend(stall) as slow, edge(tmp_path, slow.base_url, **short) as running:
        answered = await asyncio.wait_for(running.ask(stream=True), 60)
        assert answered.status == status
        assert answered.error["code"] == "upstream_timeout"
        await until(lambda: is_idle(running) and slow.open == 0)


async def test_a_status_of_a_timeout_says_nothing_about_the_backends_speed(tmp_path: Path) -> None:
    async with (
        backend(writes(whole(b"{}", b"504 Gateway Timeout"))) as bad,
        edge(tmp_path, bad.base_url) as running,
    ):
        raw = question(stream=True)
        caller = running.services.keys.find(running.key)
        assert caller
        call = Call("req_1", "chat", read_request("chat", raw), raw, "ann")

        def first_token_s() -> float:
            (candidate,) = running.services.router.explain(caller, call).candidates
            return candidate.predicted.first_token_s

        before_s = first_token_s()
        assert (await running.ask(stream=True)).status == 504
        await until(lambda: is_idle(running))
        assert running.services.health.of("pool:first").breakers.of("m").failures_in_row == 1
        assert first_token_s() == before_s


async def test_silence_counts_from_the_first_byte_on(tmp_path: Path) -> None:
    async def late(body: bytes, writer: Writer) -> None:
        await asyncio.sleep(2)
        await good(body, writer)  # all at once

    async with backend(late) as slow, edge(tmp_path, slow.base_url, silence_s=0.5) as running:
        assert (await running.ask()).content == CHAT
        assert (await running.ask(stream=True)).content == TEXT


async def test_a_refusal_in_an_answers_place_is_the_callers(tmp_path: Path) -> None:
    refusal = b'{"error": {"message": "too long", "code": 400}}'
    answer = writes(SSE + chunk(b"data: " + refusal + b"\n\n") + END)
    async with backend(answer) as bad, edge(tmp_path, bad.base_url) as running:
        answered = await running.ask(stream=True)
        assert (answered.status, answered.error["message"]) == (400, "too long")
        assert running.services.health.of("pool:first").breakers.of("m").failures_in_row == 0


async def test_an_idle_connection_that_is_let_go_costs_no_request(tmp_path: Path) -> None:
    """A server may close between two requests, also just when the second one comes."""

    async def close_afterwards(body: bytes, writer: Writer) -> None:
        # It said that it keeps the connection, and does not.
        writer.write(whole(CHAT))
        await writer.drain()
        writer.transport.abort()

    async with backend(close_afterwards) as flighty, edge(tmp_path, flighty.base_url) as running:
        for _ in range(20):
            assert (await running.ask()).content == CHAT
        assert len(flighty.requests) == 20


async def test_connections_are_used_again_and_go_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend(good) as desk, edge(tmp_path, desk.base_url) as running:
        for stream in (False, True) * 5:
            await running.ask(stream=stream)
        assert desk.connections == 1
        monkeypatch.setattr(client, "IDLE_S", 0.3)
        await asyncio.sleep(0.7)
        await running.ask()
        assert desk.connections == 2


async def test_an_answer_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    async with backend(writes(head, CHAT, closes=True)) as old, edge(tmp_path, old.base_url) as running:
        assert (await running.ask()).content == CHAT


@pytest.mark.parametrize("kept", [True, False])
async def test_what_was_sent_and_broke_off_is_not_called_unreachable(tmp_path: Path, kept: bool) -> None:
    async with backend(writes(closes=True)) as bad, edge(tmp_path, bad.base_url) as running:
        bad.answer = good if kept else bad.answer
        await running.ask()
        bad.answer = writes(closes=True)
        # A connection that was kept is asked about once more; then it is the backend's doing.
        answered = await running.ask()
        assert (answered.status, answered.error["code"]) == (502, "upstream_broke_off")


@pytest.mark.parametrize("piece", [1, 7, 100])
async def test_usage_is_asked_for_and_not_shown(tmp_path: Path, piece: int) -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
    stream = said("one") + said("two", "stop") + usage + DONE
    pieces = [chunk(stream[at : at + piece]) for at in range(0, len(stream), piece)]
    asked: list[bytes] = []

    async def answer(body: bytes, writer: Writer) -> None:
        asked.append(body)
        writer.write(SSE)
        for part in pieces:
            writer.write(part)
            await asyncio.sleep(0)
        writer.write(END)

    async with backend(answer) as desk, edge(tmp_path, desk.base_url) as running:
        silent = await running.ask(stream=True)
        assert silent.content == TEXT
        assert json.loads(asked[0])["stream_options"] == {"include_usage": True}
        shown = await running.ask(stream=True, stream_options={"include_usage": True})
        assert shown.content == stream


def call_of(body: bytes) -> Call:
    return Call("req_1", "chat", read_request("chat", body), body)


async def test_events_up_to_the_bound_pass(tmp_path: Path) -> None:
    long = said("x" * (EVENT_BYTES_MAX - 1000))
    async with (
        backend(writes(SSE, chunk(long), chunk(TEXT), END)) as desk,
        edge(tmp_path, desk.base_url) as running,
    ):
        assert (await running.ask(stream=True)).content == long + TEXT


async def test_a_lane_may_be_asked_without_an_edge(tmp_path: Path) -> None:
    async with backend(good) as desk, edge(tmp_path, desk.base_url) as running:
        answer = await running.services.lanes["pool"].open(call_of(question()), Offer("pool", "first", "m"))
        await answer.body.close()
        assert answer.meter.is_complete


class Lagging:
    """A reader who is full from an answer's last event on."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    @property
    def is_full(self) -> bool:
        return DONE in self.content

    async def drain(self) -> None:
        await asyncio.sleep(0)


async def test_who_lags_behind_the_last_piece_does_not_stop_the_next_answer(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def answer(body: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(said("one")))
        await go_on.wait()
        writer.write(chunk(said("two", "stop") + DONE) + END)

    async with backend(answer) as desk, edge(tmp_path, desk.base_url) as running:
        lane, out = running.services.lanes["pool"], Lagging()
        begun = await lane.open(call_of(question(stream=True)), Offer("pool", "first", "m"))
        sending = asyncio.create_task(begun.body.send(out))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(sending, 60)
        assert out.content == TEXT
        assert (await asyncio.wait_for(running.ask(stream=True), 60)).content == TEXT
        assert desk.connections == 1


async def test_connections_that_are_being_made_count(tmp_path: Path) -> None:
    """At most one here; one that could not be made takes nobody's place."""

    async def ask(base_url: str) -> object:
        body = question()
        return (await relay(Upstream("desk", few, base_url), call_of(body), body)).body

    few = client.Client(connections_max=1)
    async with backend(good) as desk:
        asked = await asyncio.gather(*(ask(desk.base_url) for _ in range(3)), return_exceptions=True)
        assert [isinstance(answer, LaneBusy) for answer in asked] == [False, True, True]
    for _ in range(2):
        with pytest.raises(LaneUnreachable):
            await ask("http://127.0.0.1:1/v1")
    await few.close()
