"""Responses: requests as chats, answers as OpenAI describes them, conversations that go on from what is stored."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from gateway.dialects.responses.conversation import resolve
from gateway.dialects.responses.requests import read_responses
from gateway.dialects.responses.writer import ResponseWriter
from gateway.dialects.stored_responses.pruner import prune
from gateway.dialects.stored_responses.store import ResponseStore, StoredResponse, owner_of
from gateway.dialects.stored_responses.tables import response_table
from gateway.errors import FeatureUnsupported, StorageUnavailable
from gateway.identity.caller import Caller
from gateway.settings.responses import ResponsesSettings
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.errors import NotFound, RequestInvalid, ServiceError
from tests import openai_schemas
from tests.databases import prepared, refusing
from tests.gateway.dialects.streams import Answer, Json, event, sse

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SCHEMAS = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.reasoning_text.delta": "ResponseReasoningTextDeltaEvent",
    "response.reasoning_text.done": "ResponseReasoningTextDoneEvent",
    "response.refusal.delta": "ResponseRefusalDeltaEvent",
    "response.refusal.done": "ResponseRefusalDoneEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
    "response.failed": "ResponseFailedEvent",
    "error": "ResponseErrorEvent",
}
EVERYTHING = Answer(("Hal", "lo"), ("Hm.",), (("look", ('{"a"', ":1}")), ("look", ("{}",))), "tool_calls")


def chat_of(**asked: Any) -> Json:
    chat: Json = json.loads(read_responses(json.dumps({"model": "m", "input": "Hi"} | asked).encode()).raw)
    return chat


def stream_of(upstream: bytes, **asked: Any) -> list[tuple[str, Json]]:
    question = read_responses(json.dumps({"model": "m", "input": "Hi", "stream": True} | asked).encode())
    writer = ResponseWriter(question, "req_7")
    events = sse(writer.feed(upstream) + writer.end())
    for kind, content in events:
        openai_schemas.check(SCHEMAS[kind], content)
    assert [content["sequence_number"] for _, content in events] == list(range(len(events)))
    return events


def test_a_stream_has_openais_events_in_openais_order() -> None:
    events = stream_of(EVERYTHING.events(), tools=[TOOL], text={"format": {"type": "text"}}, metadata={"a": "b"})
    opened = ["response.output_item.added", "response.content_part.added"]
    closed = ["response.content_part.done", "response.output_item.done"]
    call = "response.function_call_arguments"
    assert [kind for kind, _ in events] == [
        *("response.created", "response.in_progress"),
        *(*opened, "response.reasoning_text.delta", "response.reasoning_text.done", *closed),
        *(*opened, *["response.output_text.delta"] * 2, "response.output_text.done", *closed),
        *(opened[0], f"{call}.delta", f"{call}.delta", f"{call}.done", closed[1]),
        *(opened[0], f"{call}.delta", f"{call}.done", closed[1]),
        "response.completed",
    ]
    response = events[-1][1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"] + ["function_call"] * 2
    assert response["output"][2]["arguments"] == '{"a":1}'
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert len({item["id"] for item in response["output"]}) == 4


def test_what_is_cut_short_or_refused_or_broken_says_so() -> None:
    kind, content = stream_of(Answer(finish="length").events())[-1]
    assert (kind, content["response"]["incomplete_details"]) == (
        "response.incomplete",
        {"reason": "max_output_tokens"},
    )
    refusing = event({"choices": [{"delta": {"refusal": "No."}, "finish_reason": "stop"}]})
    assert stream_of(refusing)[-1][1]["response"]["output"][0]["content"] == [
        {"type": "refusal", "refusal": "No."}
    ]
    assert [kind for kind, _ in stream_of(b"")][-2:] == ["error", "response.failed"]


def test_log_probabilities_go_with_their_text() -> None:
    token = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
    entry = token | {"top_logprobs": [token]}
    choice = {"delta": {"content": "Hi"}, "logprobs": {"content": [entry]}, "finish_reason": "stop"}
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = stream_of(event({"choices": [choice]}), **wanted)
    assert events[-1][1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]
    assert (chat_of(**wanted)["logprobs"], chat_of(**wanted)["top_logprobs"]) == (True, 1)


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "dark"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "light"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]},
    ]
    messages = chat_of(input=items, instructions="You see.")["messages"]
    assert [message["role"] for message in messages] == [
        *("system", "system", "user", "assistant", "tool", "tool", "user")
    ]
    assert [call["id"] for call in messages[3]["tool_calls"]] == ["c1", "c2"]
    assert messages[3]["content"] == "Let me."
    assert messages[5] == {"role": "tool", "tool_call_id": "c2", "content": "light"}
    assert messages[6]["content"][0]["image_url"]["url"] == "data:image/png;base64,AA"


def test_tools_and_formats_become_the_chats() -> None:
    tools = [TOOL, TOOL | {"name": "go"}]
    assert chat_of(tools=tools, tool_choice={"type": "function", "name": "go"})["tool_choice"]["function"] == {
        "name": "go"
    }
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "go"}]}
    chat = chat_of(tools=tools, tool_choice=allowed, parallel_tool_calls=False)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["go"]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    schema = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}
    described = chat_of(text={"format": schema})["response_format"]["json_schema"]
    assert described == {"name": "s", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("asked", "param", "kind"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", FeatureUnsupported),
        ({"tools": [{"type": "namespace", "tools": [TOOL]}]}, "tools[0].name", RequestInvalid),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            "tools[0].tools[0].name",
            RequestInvalid,
        ),
        ({"input": [{"type": "additional_tools", "tools": [{}]}]}, "input[0].tools[0].type", RequestInvalid),
        ({"background": True}, "background", FeatureUnsupported),
        ({"conversation": "conv_1"}, "conversation", FeatureUnsupported),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", FeatureUnsupported),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, None, ServiceError),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", RequestInvalid),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id", RequestInvalid),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            RequestInvalid,
        ),
        ({"input": ""}, "input", RequestInvalid),
        ({"input": 5}, "input", RequestInvalid),
        ({"max_output_tokens": 0}, "max_output_tokens", RequestInvalid),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", RequestInvalid),
        ({"tool_choice": {"type": "function", "name": "no"}, "tools": [TOOL]}, "tool_choice", RequestInvalid),
        ({"metadata": {"a": "x" * 600}}, "metadata[...]", RequestInvalid),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(
    asked: Json, param: str | None, kind: type[ServiceError]
) -> None:
    with pytest.raises(kind) as caught:
        chat_of(**asked)
    assert param is None or caught.value.param == param


OWNER = Caller("k", "mr-", "ann", "", frozenset(("cluster",)))
STRANGER = Caller("k2", "mr-", "bob", "", frozenset(("cluster",)))
SECRET = Caller("k3", "mr-", "ann", "", frozenset(("cluster",)), privacy="private")
Stores = Callable[[], ResponseStore]


@pytest.fixture
def open_store(dsn: str) -> Iterator[Stores]:
    """Opens the store again each time, as a restarted process does."""
    engine = open_engine(dsn)
    running: list[ResponseStore] = []

    def open_() -> ResponseStore:
        for store in running:
            store.stop()
        running[:] = [ResponseStore(read_sessions(engine), write_sessions(engine), ResponsesSettings())]
        running[0].start()
        return running[0]

    yield open_
    for store in running:
        store.stop()
    engine.dispose()


async def _respond(
    responses: ResponseStore, request_id: str, caller: Caller = OWNER, **asked: Any
) -> tuple[Json, Json]:
    """The chat that was asked and the response that it led to."""
    question = await resolve(responses, caller, read_responses(json.dumps({"model": "m"} | asked).encode()))
    writer = ResponseWriter(question, request_id)
    writer.feed(EVERYTHING.whole())
    response = json.loads(writer.end())
    openai_schemas.check("Response", response)
    return json.loads(question.raw), response


@pytest.mark.anyio
async def test_a_conversation_goes_on_from_what_is_stored(open_store: Stores) -> None:
    store = open_store()
    _, first = await _respond(store, "req_1", input="One", instructions="Be kind.")
    calls = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call, "output": "ok"} for call in calls]
    # At once, which is before anything has been written, and after a restart.
    for request_id in ("req_2", "req_3"):
        chat, second = await _respond(store, request_id, input=outputs, previous_response_id=first["id"])
        assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool", "tool"]
        assert [call["id"] for call in chat["messages"][1]["tool_calls"]] == calls
        store = open_store()
    chat, _ = await _respond(store, "req_4", input="Go on", previous_response_id=second["id"])
    assert [m["role"] for m in chat["messages"]] == ["user", "assistant", "tool", "tool", "assistant", "user"]


@pytest.mark.anyio
async def test_references_stand_for_stored_items(open_store: Stores) -> None:
    store = open_store()
    _, first = await _respond(store, "req_1", input="One")
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    chat, _ = await _respond(store, "req_2", input=[{"role": "user", "content": "One"}, *references])
    assert len(chat["messages"][1]["tool_calls"]) == 2
    with pytest.raises(NotFound) as caught:
        await _respond(store, "req_3", STRANGER, input=references)
    assert caught.value.param == "input[0].id"


@pytest.mark.anyio
async def test_stored_responses_are_their_owners_alone(open_store: Stores) -> None:
    store = open_store()
    _, mine = await _respond(store, "req_1", input="One")
    _, unkept = await _respond(store, "req_2", input="One", store=False)
    _, secret = await _respond(store, "req_3", SECRET, input="One")
    assert (mine["store"], unkept["store"], secret["store"]) == (True, False, False)
    for caller, previous in ((STRANGER, mine), (OWNER, unkept), (OWNER, secret), (OWNER, {"id": "resp_../x"})):
        with pytest.raises(NotFound) as caught:
            await _respond(store, "req_4", caller, input="Two", previous_response_id=previous["id"])
        assert caught.value.param == "previous_response_id"
    with pytest.raises(NotFound):
        await store.remove(owner_of(STRANGER), mine["id"])
    await store.remove(owner_of(OWNER), mine["id"])
    for again in (store, open_store()):
        with pytest.raises(NotFound):
            await again.find(owner_of(OWNER), mine["id"])


@pytest.mark.anyio
async def test_a_label_holds_for_whatever_goes_on_from_it(open_store: Stores) -> None:
    store = open_store()
    _, secret = await _respond(store, "req_1", input="One", millrace={"privacy": "private"})
    assert not secret["store"]
    _, first = await _respond(store, "req_2", input="One", millrace={"privacy": "internal"})
    assert first["store"]
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    # Before it has been written, and as it was written.
    openings: tuple[Stores, ...] = (lambda: store, open_store)
    for open_again in openings:
        again = open_again()
        for asked in ({"previous_response_id": first["id"]}, {"input": [reference]}):
            label: Json = {"millrace": {"privacy": "public", "lane": "pool"}}
            chat, second = await _respond(again, "req_3", **({"input": "Two"} | asked | label))
            assert (chat["millrace"]["privacy"], chat["millrace"]["lane"]) == ("internal", "pool")
    chat, _ = await _respond(again, "req_4", input="Three", previous_response_id=second["id"])
    assert chat["millrace"]["privacy"] == "internal"


@pytest.mark.anyio
async def test_items_have_ids_that_can_be_asked_for(open_store: Stores) -> None:
    wrongs: tuple[Any, ...] = (7, [], {"a": 1})
    for wrong in wrongs:
        with pytest.raises(RequestInvalid) as caught:
            read_responses(
                json.dumps({"model": "m", "input": [{"role": "user", "content": "x", "id": wrong}]}).encode()
            )
        assert caught.value.param == "input[0].id"
    store = open_store()
    _, first = await _respond(store, "req_1", input=[{"role": "user", "content": "One", "id": None}])
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    await _respond(store, "req_2", input=[reference])


def test_only_so_many_are_kept(dsn: str) -> None:
    engine = open_engine(dsn)
    read, write = read_sessions(engine), write_sessions(engine)
    store = ResponseStore(read, write)
    store.start()
    for at in range(9):
        owner = "ann" if at else "bob"
        store.add(
            StoredResponse(f"resp_{at}", owner, None, "public", time.time_ns() + at, 500_002, "[]", "x" * 500_000)
        )
    store.stop()

    def left(keep: ResponsesSettings) -> list[str]:
        prune(write, keep)
        with read() as session:
            return list(session.scalars(select(response_table.c.id).order_by(response_table.c.id)))

    assert left(ResponsesSettings(per_user_max=3)) == ["resp_0", "resp_6", "resp_7", "resp_8"]
    assert left(ResponsesSettings(bytes_max=2**21)) == ["resp_0", "resp_6", "resp_7", "resp_8"]
    assert left(ResponsesSettings(bytes_max=2**20)) == ["resp_7", "resp_8"]
    engine.dispose()


def test_nesting_and_numbers_without_end_are_refused() -> None:
    for body in (
        b"[" * 100_000,
        b'{"model": "m", "input": ' + b"[" * 50_000,
        b'{"model":"m","temperature":NaN}',
        b"\xff",
    ):
        with pytest.raises(RequestInvalid):
            read_responses(body)
    with pytest.raises(RequestInvalid):
        read_responses(msgspec.json.encode({"model": "m", "input": [{"role": "user", "content": "x"}] * 10_001}))


@pytest.mark.anyio
async def test_a_response_that_cannot_be_written_yet_is_kept_and_no_further_one_is_promised(
    tmp_path: Path,
) -> None:
    folder = prepared(tmp_path)
    engine = open_engine(folder.dsn)
    store = ResponseStore(read_sessions(engine), write_sessions(engine))
    store.start()
    with refusing(folder.database, "stored_response"):
        _, first = await _respond(store, "req_1", input="One")
        async with asyncio.timeout(60):
            while True:
                try:
                    await _respond(store, "req_2", input="Two")
                except StorageUnavailable:
                    break
                await asyncio.sleep(0.01)
        assert (await store.find(owner_of(OWNER), first["id"])).id == first["id"]
    async with asyncio.timeout(60):
        while store._is_failing:
            await asyncio.sleep(0.01)
    store.stop()
    written = ResponseStore(read_sessions(engine), write_sessions(engine))
    assert (await written.find(owner_of(OWNER), first["id"])).id == first["id"]
    engine.dispose()
