"""A stream that breaks off goes on elsewhere, where its caller wants that and half an answer allows it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import structs

from gateway.dialects.openai import Extras, read_request
from gateway.lanes.base import Call
from gateway.requests.continuation import RememberedStream, next_call
from tests.gateway.http.edges import DONE, SSE, Answered, Backend, Writer, backend, chunk, said, until
from tests.gateway.requests.roads import nothing_is_left, receive, road, send, text_of

pytestmark = pytest.mark.anyio

KIND = {"kind": "vllm"}
WANTED: dict[str, Any] = {"stream": True, "millrace": {"continue_on_failure": True}}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


async def break_off(body: bytes, writer: Writer) -> None:
    """The wheel, and no more."""
    writer.write(SSE + chunk(_opening()) + chunk(said("The ")) + chunk(said("wheel ")))
    writer.close()


async def go_on(body: bytes, writer: Writer) -> None:
    events = [_opening("y"), said("turns ", None), said("on.", "stop")]
    usage = b"data: " + json.dumps({"id": "y", "choices": [], "usage": USAGE}).encode() + b"\n\n"
    writer.write(SSE + b"".join(map(chunk, [*events, usage, DONE])) + b"0\r\n\r\n")


def _opening(id_: str = "x") -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return b"data: " + json.dumps({"id": id_, "choices": [choice]}).encode() + b"\n\n"


async def asked(tmp_path: Path, one: Any, two: Any, **fields: Any) -> tuple[Answered, Backend, Backend, Any]:
    """Of the first backend, and of the second when that fails; with the log's entry."""
    async with (
        backend(one) as first,
        backend(two) as second,
        road(tmp_path, first.base_url, second.base_url, backend=KIND) as running,
    ):
        pool: Any = running.services.lanes["pool"]
        light = pool.pool.find("second")
        light.settings = light.settings.model_copy(update={"weight": 0.01})
        light._renew()
        answered = await receive(await send(running, **fields))
        await nothing_is_left(running)
        log = running.services.request_log
        await until(lambda: log.find(answered.headers["x-request-id"]) is not None, 60)
        return answered, first, second, log.find(answered.headers["x-request-id"])


async def test_the_rest_comes_from_another_as_part_of_the_same_answer(tmp_path: Path) -> None:
    usage = {"stream_options": {"include_usage": True}, "max_tokens": 50}
    answered, _, second, entry = await asked(tmp_path, break_off, go_on, **WANTED, **usage)
    assert text_of(answered) == "The wheel turns on."
    assert answered.content.endswith(DONE)
    assert b": continued on pool:second\n\n" in answered.content
    events = [json.loads(event) for event in answered.events if event != b"[DONE]"]
    assert {event["id"] for event in events} == {"x"}
    assert sum("role" in event["choices"][0]["delta"] for event in events if event["choices"]) == 1
    # What was said before the break was said, and was no part of the question.
    assert events[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    sent = json.loads(second.requests[0])
    assert sent["messages"][-1] == {"role": "assistant", "content": "The wheel "}
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert sent["max_tokens"] == 48
    assert "millrace" not in sent
    assert (entry.outcome, entry.backend, entry.completion_tokens) == ("complete", "second", 5)
    assert entry.error == ""
    assert entry.reason.endswith("; continued on pool:second")


async def test_nobody_left_to_go_on_is_an_error(tmp_path: Path) -> None:
    answered, first, second, entry = await asked(tmp_path, break_off, break_off, **WANTED)
    assert text_of_error(answered) == "The wheel The wheel "
    assert answered.error["code"] == "upstream_broke_off"
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert entry.outcome == "failed"


async def test_who_hangs_up_in_the_rest_stops_it_and_leaves_nothing(tmp_path: Path) -> None:
    async def begin_only(body: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(said("turns ")))
        await asyncio.Event().wait()

    async with (
        backend(break_off) as first,
        backend(begin_only) as second,
        road(tmp_path, first.base_url, second.base_url, backend=KIND) as running,
    ):
        pool: Any = running.services.lanes["pool"]
        light = pool.pool.find("second")
        light.settings = light.settings.model_copy(update={"weight": 0.01})
        light._renew()
        reader, writer = await send(running, **WANTED)
        await asyncio.wait_for(reader.readuntil(b"turns "), 60)
        assert second.open == 1
        writer.close()
        await until(lambda: second.open == 0)
        await nothing_is_left(running)


def text_of_error(answered: Answered) -> str:
    events = [json.loads(event) for event in answered.events]
    return "".join(event["choices"][0]["delta"]["content"] for event in events if event.get("choices"))


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        WANTED | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        WANTED | {"response_format": {"type": "json_object"}},
        WANTED | {"logprobs": True},
        WANTED | {"n": 2},
    ],
)
async def test_otherwise_it_ends_with_an_error(tmp_path: Path, fields: dict[str, Any]) -> None:
    answered, _, second, entry = await asked(tmp_path, break_off, go_on, **fields)
    assert answered.error["code"] == "upstream_broke_off"
    assert DONE not in answered.content
    assert not second.requests
    assert entry.outcome == "failed"


async def test_what_was_not_only_text_is_not_gone_on_with(tmp_path: Path) -> None:
    async def think(body: bytes, writer: Writer) -> None:
        choice = {"index": 0, "delta": {"reasoning_content": "Hm."}, "finish_reason": None}
        writer.write(SSE + chunk(b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"))
        writer.close()

    answered, _, second, _ = await asked(tmp_path, think, go_on, **WANTED)
    assert answered.error["code"] == "upstream_broke_off"
    assert not second.requests


def test_a_rest_from_the_beginning_is_asked_for_as_the_caller_asked() -> None:
    raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True})
    asked = Call("req_1", "chat", read_request("chat", raw), raw, "tenant")
    between_gateways = structs.replace(asked.generation, millrace=Extras(resumable=True), seed=1)
    rest = next_call(structs.replace(asked, request=between_gateways), RememberedStream(_Nobody()))
    assert rest.request == asked.request


class _Nobody:
    is_full = False

    def write(self, data: bytes) -> None:
        raise AssertionError(data)

    async def drain(self) -> None:
        raise AssertionError
