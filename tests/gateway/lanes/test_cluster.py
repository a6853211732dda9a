"""The cluster lane's answers as callers get them: tools, schemas and thoughts, from a model that is asked."""

import functools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cluster.control.specs import DeploymentSpec
from cluster.controller import Controller
from cluster.errors import RequestInvalid
from cluster.generation import TokenEvent
from cluster.models.chat_format import ChatFormat
from gateway.dialects.openai import read_request
from gateway.errors import LaneBusy, to_api_error
from gateway.lanes.base import Call
from gateway.lanes.cluster.answers import AnswerWriter
from gateway.lanes.cluster.lane import ClusterLane
from gateway.lanes.cluster.requests import tools_of
from gateway.lanes.usage import Meter
from tests.clusters import DEMO_MODEL, running_cluster
from tests.gateway.lanes.collected import Collected
from tests.openai_schemas import check

pytestmark = pytest.mark.anyio

# In the manner of Hermes and Qwen: tools in the first message, calls and what came of them in marks.
TEMPLATE = """{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
NOON: dict[str, Any] = {
    "type": "function",
    "function": {"name": "noon", "parameters": {"type": "object", "maxProperties": 0}},
}
DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"type": "array", "items": inner}, range(300), {})
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def lane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterLane]:
    model = tmp_path_factory.mktemp("models") / "demo"
    shutil.copytree(DEMO_MODEL, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    async with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=1, model=model) as cluster:
        yield ClusterLane(cluster.controller, 8)


def call(**fields: Any) -> Call:
    body = {"model": "demo", "messages": ASKED, "temperature": 0, "max_tokens": 300} | fields
    raw = json.dumps(body).encode()
    return Call("test", "chat", read_request("chat", raw), raw)


async def ask(lane: ClusterLane, **fields: Any) -> Any:
    asked, out = call(**fields), Collected()
    (offer,) = lane.offers("demo")
    assert asked.features.keys() <= offer.features
    answer = await lane.open(asked, offer)
    await answer.body.send(out)
    return chunks(out.content) if asked.request.is_stream else json.loads(out.content)


def chunks(stream: bytes) -> list[dict[str, Any]]:
    events = stream.decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(streamed: list[dict[str, Any]]) -> dict[str, Any]:
    """The first choice of a stream as clients put it together."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in streamed:
        check("CreateChatCompletionStreamResponse", chunk)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            message["finish_reason"] = choice["finish_reason"]
            for part in delta.get("tool_calls") or ():
                if "id" in part:
                    assert part["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"id": part["id"], "arguments": "", **part["function"]})
                else:
                    message["tool_calls"][part["index"]]["arguments"] += part["function"]["arguments"]
    return message


async def test_without_a_ring_the_last_word_says_which_local_nodes_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.chat_model.READY_PATIENCE_S", 0.1)
    controller = Controller(tmp_path)
    await controller.start("127.0.0.1", 0)
    try:
        lane = ClusterLane(controller, 8)
        await controller.chat.load_model(str(DEMO_MODEL))
        controller.absences.note("node-1", "ended (killed by signal 9); it restarts in 5 s")
        (offer,) = lane.offers("model")
        request = read_request("chat", json.dumps({"model": "model", "messages": ASKED}).encode())
        with pytest.raises(
            LaneBusy, match=r"no machine is in the cluster; node-1 ended \(killed by signal 9\)"
        ) as left:
            await lane.open(Call("c", "chat", request, b""), offer)
    finally:
        await controller.stop()
    told = to_api_error(left.value)
    assert (told.status, told.code) == (503, "cluster_unavailable")


async def test_no_other_model_answers_for_one_that_is_removed_while_a_request_waits_for_a_slot(
    tmp_path: Path,
) -> None:
    controller = Controller(tmp_path / "cluster", served_name="first")
    lane = ClusterLane(controller, 8)
    await controller.chat.load_model(str(DEMO_MODEL))
    await controller.run_model(DeploymentSpec("added", str(DEMO_MODEL)))
    (offer,) = lane.offers("added")
    await controller.remove_model("added")
    with pytest.raises(LaneBusy, match="added was removed") as left:
        await lane.open(call(model="added"), offer)
    told = to_api_error(left.value)
    assert (told.status, told.code) == (503, "cluster_unavailable")


async def test_a_call_that_must_be_made_is_made(lane: ClusterLane) -> None:
    whole = await ask(lane, tools=[WEATHER, NOON], tool_choice="required")
    check("CreateChatCompletionResponse", whole)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    made = [one["function"] for one in choice["message"]["tool_calls"]]
    assert made
    for one in made:
        schema = CITY if one["name"] == "weather" else NOON["function"]["parameters"]
        Draft202012Validator(schema).validate(json.loads(one["arguments"]))
    streamed = joined(await ask(lane, tools=[WEATHER, NOON], tool_choice="required", stream=True))
    assert [(one["name"], one["arguments"]) for one in streamed["tool_calls"]] == [
        (one["name"], one["arguments"]) for one in made
    ]
    assert (streamed["content"], streamed["finish_reason"]) == ("", "tool_calls")


async def test_the_named_function_alone_is_called(lane: ClusterLane) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    whole = await ask(lane, tools=[NOON, WEATHER], tool_choice=choice, temperature=1.5, seed=3, n=3)
    for said in whole["choices"]:
        (made,) = said["message"]["tool_calls"]
        assert made["function"]["name"] == "weather"
        assert json.loads(made["function"]["arguments"])["city"] in ("Rome", "Oslo")


async def test_calls_and_what_came_of_them_are_read(lane: ClusterLane) -> None:
    history = [
        *ASKED,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    whole = await ask(lane, messages=history, tools=[WEATHER], max_tokens=8)
    check("CreateChatCompletionResponse", whole)
    longer = await lane._controller.chat.count_tokens([{"role": "user", "content": "Hi"}], [WEATHER])
    assert longer > await lane._controller.chat.count_tokens([{"role": "user", "content": "Hi"}]) > 3


async def test_schemas_are_kept_to(lane: ClusterLane) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
    whole = await ask(lane, response_format=schema, logprobs=True, top_logprobs=2)
    check("CreateChatCompletionResponse", whole)
    Draft202012Validator(CITY).validate(json.loads(whole["choices"][0]["message"]["content"]))
    streamed = joined(await ask(lane, response_format=schema, stream=True))
    assert streamed["content"] == whole["choices"][0]["message"]["content"]
    anything = await ask(lane, response_format={"type": "json_object"}, temperature=1.0, seed=5, max_tokens=900)
    (choice,) = anything["choices"]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "frob"}}}},
            "response_format",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "frob"}}}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"response_format": DEEP}, "response_format"),
        ({"chat_template_kwargs": DEEP}, "chat_template_kwargs"),
        ({"tools": [WEATHER | {"function": WEATHER["function"] | {"parameters": DEEP}}]}, "tools"),
    ],
)
async def test_what_cannot_be_kept_to_is_refused_by_name(
    lane: ClusterLane, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        await ask(lane, **fields)
    assert caught.value.param == param


def test_thoughts_and_calls_are_told_apart_as_they_come() -> None:
    """One that thinks first, says something, and calls twice; only once when that is all that is wanted."""
    said = "so they want\n</think>\n\nI look."
    said += '\n<tool_call>\n{"name": "noon", "arguments": {}}\n</tool_call>\n'
    said += '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    form = ChatFormat("hermes", ("<think>", "</think>"))
    for parallel, calls in ((True, [("noon", "{}"), ("weather", '{"city": "Oslo"}')]), (False, [("noon", "{}")])):
        fields = {"tools": [WEATHER, NOON], "parallel_tool_calls": parallel}
        asked = call(stream=True, **fields)
        writer = AnswerWriter(asked, "demo", [""], form, tools_of(asked))
        writer.accept(is_thinking=True)
        written = b"".join(
            writer.token(0, TokenEvent(0, said[at : at + 3], at, 0)) for at in range(0, len(said), 3)
        )
        written += writer.token(0, TokenEvent(0, "", len(said), 0, finish="stop")) + writer.end(Meter())
        message = joined(chunks(written))
        assert (message["reasoning_content"], message["content"]) == ("so they want", "I look.")
        assert [(one["name"], one["arguments"]) for one in message["tool_calls"]] == calls
        assert message["finish_reason"] == "tool_calls"
        used = Meter()
        writer.tell_apart(used)
        # A letter is a token here, and what surrounds thoughts and calls belongs to them or to their neighbours.
        assert len("so they want") - 3 <= used.reasoning_tokens <= said.index("I look.")
        in_calls = len(said) - said.index("<tool_call>")
        assert in_calls // (1 if parallel else 4) - 20 <= used.tool_tokens <= in_calls
        asked = call(**fields)
        writer = AnswerWriter(asked, "demo", [""], form, tools_of(asked))
        writer.accept(is_thinking=True)
        writer.token(0, TokenEvent(0, said, len(said), 0, finish="stop"))
        whole = json.loads(writer.end(Meter()))
        check("CreateChatCompletionResponse", whole)
        (choice,) = whole["choices"]
        assert choice["message"]["reasoning_content"] == "so they want"
        assert [one["function"]["name"] for one in choice["message"]["tool_calls"]] == [name for name, _ in calls]
