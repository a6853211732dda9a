"""A replica takes up what another one broke off; what would tell the caller anything twice, or wrong, is not sent."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import RequestInvalid
from gateway.lanes.base import Answer, Call, GeneratorBody, Lane, Offer, begun
from gateway.lanes.resume_records import ResumeRecord, write_record
from gateway.requests import failover_target as elsewhere
from gateway.settings import LaneName
from tests.gateway.http.edges import (
    DONE,
    SSE,
    Answered,
    Answers,
    Backend,
    Edge,
    Writer,
    backend,
    chunk,
    said,
    served,
    until,
    whole,
    with_lanes,
)
from tests.gateway.requests.roads import nothing_is_left, receive, road, send, text_of

pytestmark = pytest.mark.anyio

LISTED = {
    "id": "m",
    "owned_by": "millrace",
    "millrace": {"lanes": ["cluster"], "can": ["chat", "complete text"], "weights": "w"},
}
USAGE = {"id": "y", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}}
END = b"0\r\n\r\n"


def told(*texts: str, last: bool = False) -> bytes:
    """Each text is a token, and the tokens are known."""
    written = b""
    for at, text in enumerate(texts):
        finished = last and at == len(texts) - 1
        record = ResumeRecord(choice=0, token_ids=[len(text)], characters=len(text), chunks=1, finished=finished)
        written += chunk(write_record(record) + said(text, "stop" if finished else None))
    return written


async def break_off(body: bytes, writer: Writer) -> None:
    writer.write(SSE + told("The ", "wheel "))
    writer.close()


async def break_off_between(body: bytes, writer: Writer) -> None:
    """The third token's record has come, its chunk has not."""
    record = ResumeRecord(choice=0, token_ids=[9], characters=6, chunks=1)
    writer.write(SSE + told("The ", "wheel ") + chunk(write_record(record)))
    writer.close()


async def fail(body: bytes, writer: Writer) -> None:
    error = b'data: {"error": {"message": "a machine was lost"}}\n\n'
    writer.write(SSE + told("The ", "wheel ") + chunk(error) + END)


async def go_on(body: bytes, writer: Writer) -> None:
    usage = chunk(b"data: " + json.dumps(USAGE).encode() + b"\n\n")
    writer.write(SSE + told("turns ", "on.", last=True) + usage + chunk(DONE) + END)


async def start_over(body: bytes, writer: Writer) -> None:
    """One that does not know what `resume` is."""
    writer.write(SSE + chunk(said("The wheel")) + chunk(said(".", "stop")) + chunk(DONE) + END)


async def refuse(body: bytes, writer: Writer) -> None:
    writer.write(whole(b'{"error": {"message": "other weights"}}', b"400 Bad Request"))


@asynccontextmanager
async def asked_road(
    tmp_path: Path, *answers: Answers, others: int = 0
) -> AsyncIterator[tuple[Edge, list[Backend]]]:
    """Backends that list the same weights, and are preferred in their order. The last `others` list none."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(backend(answer)) for answer in answers]
        for one in backends[: len(backends) - others]:
            one.models = json.dumps({"data": [LISTED]}).encode()
        urls = [one.base_url for one in backends]
        running = await stack.enter_async_context(
            road(tmp_path, *urls, backend={"kind": "millrace", "models": ()})
        )
        yield running, backends


async def entry_of(running: Edge, answered: Answered) -> Any:
    """The request log's, when everything is given back."""
    await nothing_is_left(running)
    log, id_ = running.services.request_log, answered.headers["x-request-id"]
    await until(lambda: log.find(id_) is not None, 60)
    return log.find(id_)


ORDERED: dict[str, Any] = {"stream": True, "provider": {"order": ["first", "second", "third"]}}


@pytest.mark.parametrize("breaks", [break_off, break_off_between, fail])
async def test_the_rest_comes_from_the_replica(tmp_path: Path, breaks: Answers) -> None:
    async with asked_road(tmp_path, breaks, go_on) as (running, (first, second)):
        fields: dict[str, Any] = ORDERED | {"stream_options": {"include_usage": True}, "temperature": 1}
        answered = await receive(await send(running, **fields))
        assert text_of(answered) == "The wheel turns on."
        assert answered.content.endswith(DONE)
        assert b"millrace" not in answered.content
        events = [json.loads(event) for event in answered.events if event != b"[DONE]"]
        assert {event["id"] for event in events} == {"x"}
        assert events[-1]["usage"] == USAGE["usage"]
        question, rest = json.loads(first.requests[0]), json.loads(second.requests[0])
        assert question["millrace"] == {"resumable": True, "weights": "w"}
        assert rest.pop("millrace")["resume"] == [{"token_ids": [4, 6], "characters": 10}]
        assert rest == {name: value for name, value in question.items() if name != "millrace"}
        assert isinstance(rest["seed"], int)
        await nothing_is_left(running)
        log = running.services.request_log
        await until(lambda: log.find(answered.headers["x-request-id"]) is not None, 60)
        entry = log.find(answered.headers["x-request-id"])
        assert entry
        assert (entry.outcome, entry.backend, entry.completion_tokens) == ("complete", "second", 4)
        assert entry.reason.endswith("; continued on pool:second")


async def test_one_that_refuses_is_passed_over(tmp_path: Path) -> None:
    async with asked_road(tmp_path, break_off, refuse, go_on) as (running, (_, second, third)):
        answered = await receive(await send(running, **ORDERED))
        assert text_of(answered) == "The wheel turns on."
        assert (len(second.requests), len(third.requests)) == (1, 1)
        await nothing_is_left(running)


async def test_one_that_is_back_is_asked_once_more(tmp_path: Path) -> None:
    async def come_back(body: bytes, writer: Writer) -> None:
        await (go_on if "resume" in json.loads(body)["millrace"] else break_off)(body, writer)

    async def go_on_a_little(body: bytes, writer: Writer) -> None:
        writer.write(SSE + told("that "))
        writer.close()

    async with asked_road(tmp_path, come_back, go_on_a_little) as (running, _):
        assert text_of(await receive(await send(running, **ORDERED))) == "The wheel that turns on."
        await nothing_is_left(running)


@pytest.mark.parametrize("rest", [refuse, start_over])
async def test_where_nobody_can_go_on_it_ends_with_an_error(tmp_path: Path, rest: Answers) -> None:
    async with asked_road(tmp_path, break_off, rest) as (running, _):
        answered = await receive(await send(running, **ORDERED))
        assert answered.error["code"] == "upstream_broke_off"
        assert DONE not in answered.content
        assert b"The wheel." not in answered.content
        await nothing_is_left(running)
        log = running.services.request_log
        await until(lambda: log.find(answered.headers["x-request-id"]) is not None, 60)
        entry = log.find(answered.headers["x-request-id"])
        assert entry
        assert (entry.outcome, entry.completion_tokens) == ("failed", 2)


async def test_what_does_not_tell_its_tokens_is_not_gone_on_with(tmp_path: Path) -> None:
    """A Millrace that has it computed by a third party, for example."""

    async def break_off_untold(body: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(said("The ")))
        writer.close()

    async with asked_road(tmp_path, break_off_untold, go_on) as (running, (_, second)):
        answered = await receive(await send(running, **ORDERED))
        assert answered.error["code"] == "upstream_broke_off"
        assert not second.requests


async def test_who_hangs_up_in_the_rest_stops_it_and_leaves_nothing(tmp_path: Path) -> None:
    async def begin_only(body: bytes, writer: Writer) -> None:
        writer.write(SSE + told("turns "))
        await asyncio.Event().wait()

    async with asked_road(tmp_path, break_off, begin_only) as (running, (_, second)):
        reader, writer = await send(running, **ORDERED)
        await asyncio.wait_for(reader.readuntil(b"turns "), 60)
        assert second.open == 1
        writer.close()
        await until(lambda: second.open == 0)
        await nothing_is_left(running)


async def test_one_without_a_replica_is_asked_as_ever(tmp_path: Path) -> None:
    async with asked_road(tmp_path, go_on) as (running, (first,)):
        await receive(await send(running, stream=True, temperature=1))
        assert not json.loads(first.requests[0]).keys() & {"millrace", "seed"}


@pytest.mark.parametrize("alone", [True, False])
async def test_other_weights_than_the_caller_expects_are_not_told(tmp_path: Path, alone: bool) -> None:
    """It would take these tokens for those of its own. Between us and a replica they are told all the same."""
    answers = (go_on,) if alone else (break_off, go_on)
    async with asked_road(tmp_path, *answers) as (running, backends):
        answered = await receive(await send(running, **ORDERED, millrace={"resumable": True, "weights": "others"}))
        assert text_of(answered) == ("turns on." if alone else "The wheel turns on.")
        asked = [json.loads(one.requests[0]).get("millrace", {}).get("weights") for one in backends]
        assert asked == ([None] if alone else ["w", "w"])
        assert alone or b"millrace" not in answered.content


async def test_one_that_starts_over_is_stopped_and_the_next_is_asked(tmp_path: Path) -> None:
    async def start_over_for_long(body: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(said("The wheel")))
        await asyncio.Event().wait()

    async with asked_road(tmp_path, break_off, start_over_for_long, go_on) as (running, (_, second, _)):
        assert text_of(await receive(await send(running, **ORDERED))) == "The wheel turns on."
        await until(lambda: second.open == 0)
        await nothing_is_left(running)


async def test_an_error_is_the_first_that_a_replica_says(tmp_path: Path) -> None:
    async def fail_at_once(body: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(b": wait\n\n"))
        await asyncio.sleep(0.1)
        writer.write(chunk(b'data: {"error": {"message": "a machine was lost"}}\n\n') + END)

    async with asked_road(tmp_path, break_off, fail_at_once) as (running, _):
        answered = await receive(await send(running, **ORDERED))
        assert answered.error["message"] == "pool:second was interrupted: a machine was lost"
        assert (await entry_of(running, answered)).completion_tokens == 2


async def test_an_end_without_done_keeps_what_was_used(tmp_path: Path) -> None:
    async def end_without_done(body: bytes, writer: Writer) -> None:
        usage = chunk(b"data: " + json.dumps(USAGE).encode() + b"\n\n")
        writer.write(SSE + told("turns ", "on.", last=True) + usage + END)

    async with asked_road(tmp_path, break_off, end_without_done) as (running, _):
        answered = await receive(await send(running, **ORDERED, stream_options={"include_usage": True}))
        assert json.loads(answered.events[-2])["usage"] == USAGE["usage"]
        assert answered.events[-1] == b"[DONE]"
        assert (await entry_of(running, answered)).outcome == "complete"


async def test_where_the_end_alone_is_missing_nobody_is_asked(tmp_path: Path) -> None:
    async def break_off_at_the_end(body: bytes, writer: Writer) -> None:
        writer.write(SSE + told("The ", "end.", last=True))
        writer.close()

    async with asked_road(tmp_path, break_off_at_the_end, go_on) as (running, (_, second)):
        answered = await receive(await send(running, **ORDERED))
        assert text_of(answered) == "The end."
        assert answered.content.endswith(DONE)
        assert not second.requests
        entry = await entry_of(running, answered)
        assert (entry.outcome, entry.completion_tokens) == ("complete", 2)


async def test_behind_all_replicas_what_goes_on_from_the_text_is_counted_once(tmp_path: Path) -> None:
    async def break_off_once(body: bytes, writer: Writer) -> None:
        await (refuse if len(backends[0].requests) > 1 else break_off)(body, writer)

    async def break_off_again(body: bytes, writer: Writer) -> None:
        writer.write(SSE + told("turns "))
        writer.close()

    async def go_on_from_the_text(body: bytes, writer: Writer) -> None:
        usage = USAGE | {"usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}}
        event = chunk(b"data: " + json.dumps(usage).encode() + b"\n\n")
        writer.write(SSE + chunk(said("on.", "stop")) + event + chunk(DONE) + END)

    all_ = (break_off_once, break_off_again, go_on_from_the_text)
    async with asked_road(tmp_path, *all_, others=1) as (running, backends):
        fields = ORDERED | {"model": "m", "prompt": "Hi", "millrace": {"continue_on_failure": True}}
        reader, writer = await running.connect()
        body = json.dumps(fields).encode()
        writer.write(running.request(body, b"connection: close\r\n", b"/v1/completions"))
        answered = await receive((reader, writer))
        assert text_of(answered) == "The wheel turns on."
        entry = await entry_of(running, answered)
        assert (entry.outcome, entry.completion_tokens) == ("complete", 4)


class RefusingLane:
    """A cluster of the same weights, which finds behind a token that it cannot go on with the request at all."""

    name: LaneName = "cluster"

    def models(self) -> list[str]:
        return ["m"]

    def offers(self, model: str) -> list[Offer]:
        return [Offer("cluster", "cluster", model, weights="w")]

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        return Answer(200, "text/event-stream", GeneratorBody(await begun(self._body())))

    async def _body(self) -> AsyncGenerator[bytes]:
        yield b""
        record = ResumeRecord(choice=0, token_ids=[4], characters=4, chunks=1)
        yield write_record(record) + said("The ")
        raise RequestInvalid("the schema allows nothing here", "response_format")


async def test_what_the_request_is_to_blame_for_is_asked_of_nobody_else(tmp_path: Path) -> None:
    async with asked_road(tmp_path, go_on) as (running, (first,)):
        services = running.services
        lanes: dict[LaneName, Lane] = {**services.lanes, "cluster": RefusingLane()}
        async with served(with_lanes(services, lanes)) as other:
            key = services.keys.create("all", ("pool", "cluster"))
            answered = await receive(await send(other, key, stream=True, provider={"order": ["cluster"]}))
        assert answered.error["param"] == "response_format"
        assert not first.requests
        assert services.health.of("cluster").breakers.of("m").failures_in_row == 0
        await nothing_is_left(running)


async def test_a_caller_hears_something_while_a_replica_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "_SILENCE_S", 0.02)

    async def go_on_late(body: bytes, writer: Writer) -> None:
        await asyncio.sleep(0.5)
        await go_on(body, writer)

    async with asked_road(tmp_path, break_off, go_on_late) as (running, _):
        answered = await receive(await send(running, **ORDERED))
        assert b"\n\n: still looking" in answered.content
        assert text_of(answered) == "The wheel turns on."
