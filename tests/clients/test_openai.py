"""OpenAI's own client, as it is, with all of its API that we have."""

import json
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests import openai_schemas
from tests.clients.conftest import Served
from tests.fakes.whole_api import FILLED, MODEL, PICTURE, SPEECH, TEXT

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "time")
]
FUNCTIONS: Any = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in ("weather", "time")]
USER: Any = {"role": "user", "content": "How is the weather in Paris?"}


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.fixture
def client(served: Served) -> OpenAI:
    return served.gateway.openai()


def test_tools_are_called_side_by_side(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=[USER], tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = message.tool_calls or []
    assert [call.function.name for call in calls] == ["weather", "time"]
    found: Any = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    history: Any = [USER, message.model_dump(exclude_none=True), *found]
    answer = client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
    assert answer.choices[0].message.content == "It is sunny and sunny."


def test_schemas_pictures_and_log_probabilities(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=[USER], response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather.model_validate(FILLED)
    picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    seen = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [picture]}],
        logprobs=True,
        top_logprobs=1,
    )
    choice = seen.choices[0]
    assert choice.message.content == "I see 1 pictures."
    assert choice.logprobs
    assert choice.logprobs.content
    assert choice.logprobs.content[0].logprob == -0.25


def test_responses_whole_and_streamed(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    assert (response.output_text, response.status) == (TEXT, "completed")
    openai_schemas.check("Response", client.responses.with_raw_response.retrieve(response.id).http_response.json())
    with client.responses.stream(model=MODEL, input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == TEXT
    parsed = client.responses.parse(model=MODEL, input="Hi", text_format=Weather)
    assert parsed.output_parsed == Weather.model_validate(FILLED)


def test_a_response_goes_on_from_the_one_before(client: OpenAI, served: Served) -> None:
    first = client.responses.create(model=MODEL, input="Hi", tools=FUNCTIONS)
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(model=MODEL, input=outputs, previous_response_id=first.id)
    assert second.output_text == "It is sunny and sunny."
    for response, kinds in ((first, ["message"]), (second, ["function_call_output"] * 2)):
        listed = served.gateway.http().get(f"/v1/responses/{response.id}/input_items").json()
        openai_schemas.check("ResponseItemList", listed)
        assert [item.type for item in client.responses.input_items.list(response.id, order="asc").data] == kinds
    served.gateway.cli("users", "add", "bob")
    made = json.loads(served.gateway.cli("key", "create", "bobs", "--user", "bob", "--lanes", "pool", "--json"))
    stranger = served.gateway.openai(made["api_key"])
    with pytest.raises(NotFoundError):
        stranger.responses.retrieve(first.id)
    with pytest.raises(NotFoundError):
        stranger.responses.create(model=MODEL, input="Hi", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        client.responses.create(model=MODEL, input="Hi", previous_response_id=first.id)


GROUPED: Any = [
    FUNCTIONS[0],
    {"type": "namespace", "name": "home", "description": "At home.", "tools": FUNCTIONS},
    {"type": "namespace", "name": "mcp__away__", "description": "", "tools": [FUNCTIONS[0]]},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"}},
]
CALLED = [
    ("weather", None, "weather"),
    ("patch", None, "patch"),
    ("weather", "home", "home__weather"),
    ("time", "home", "home__time"),
    ("weather", "mcp__away__", "mcp__away__weather"),
]


def test_grouped_and_custom_tools_are_functions_and_come_back_as_they_were_sent(
    client: OpenAI, served: Served
) -> None:
    """As Codex sends its own tools and those of MCP servers; two groups may have a function of the same name."""
    first = client.responses.create(model=MODEL, input="Hi", tools=GROUPED)
    sent = served.backend.last(MODEL).body["tools"]
    assert [tool["function"]["name"] for tool in sent] == [flat for _, _, flat in CALLED]
    assert sent[2]["function"]["description"] == "At home."
    assert "start: A" in sent[1]["function"]["description"]
    calls = [item for item in first.output if item.type in ("function_call", "custom_tool_call")]
    assert [(call.name, call.namespace) for call in calls] == [(name, group) for name, group, _ in CALLED]
    with client.responses.stream(model=MODEL, input="Hi", tools=GROUPED) as stream:
        done = [event.item for event in stream if event.type == "response.output_item.done"]
    assert [getattr(item, "namespace", "none") for item in done[-5:]] == [group for _, group, _ in CALLED]
    outputs: Any = [{"type": f"{call.type}_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    # What was called is in the conversation by the names that the model knows, whether it is sent or stored.
    for history in ({"input": outputs, "previous_response_id": first.id}, {"input": [*calls, *outputs]}):
        answer = client.responses.create(model=MODEL, tools=GROUPED, **history)
        assert answer.output_text.startswith("It is sunny and sunny")
        asked = served.backend.last(MODEL).body["messages"]
        assistant = next(message for message in asked if message["role"] == "assistant")
        assert [call["function"]["name"] for call in assistant["tool_calls"]] == [flat for _, _, flat in CALLED]
        assert json.loads(assistant["tool_calls"][1]["function"]["arguments"]) == {"input": json.dumps(FILLED)}


def test_tools_that_cannot_be_called_here_are_left_out_with_a_warning(client: OpenAI, served: Served) -> None:
    hosted: Any = [{"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}}]
    answered = client.responses.with_raw_response.create(model=MODEL, input="Hi", tools=[*hosted, FUNCTIONS[0]])
    warned = "tools left out, as they cannot be called here: web_search, code_interpreter"
    assert answered.headers["x-millrace-warning"] == warned
    assert [tool["function"]["name"] for tool in served.backend.last(MODEL).body["tools"]] == ["weather"]
    assert [tool.type for tool in answered.parse().tools] == ["function"]
    alone = client.responses.with_raw_response.create(model=MODEL, input="Hi", tools=hosted)
    assert (alone.parse().output_text, alone.headers["x-millrace-warning"]) == (TEXT, warned)
    assert "x-millrace-warning" not in client.responses.with_raw_response.create(model=MODEL, input="Hi").headers
    # A request that insists on one of them cannot be answered as it wants.
    forced: Any = ({"tool_choice": "required"}, {"tool_choice": hosted[0], "tools": [*hosted, FUNCTIONS[0]]})
    for asked in forced:
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(**{"model": MODEL, "input": "Hi", "tools": hosted} | asked)
        assert (refused.value.param, refused.value.code) == ("tool_choice", "unsupported_feature")


def test_embeddings_moderations_and_pictures(client: OpenAI) -> None:
    embedded = client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert [entry.embedding for entry in embedded.data] == [[0.5, 0.0], [0.5, 1.0]]
    assert not client.moderations.create(model=MODEL, input="Hi").results[0].flagged
    painted = client.images.generate(model=MODEL, prompt="A mill").data
    assert painted
    assert painted[0].b64_json == PICTURE
    edited = client.images.edit(model=MODEL, image=("mill.png", b"\x89PNG"), prompt="At night").data
    assert edited
    assert edited[0].b64_json == PICTURE


def test_sound_passes_byte_for_byte(client: OpenAI, served: Served) -> None:
    assert client.audio.speech.create(model=MODEL, voice="alloy", input="Hi").content == SPEECH
    sound = bytes(range(256)) * 500 + b"\r\n--half a boundary\r\n"
    assert client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound)).text == TEXT
    assert served.backend.last(MODEL).body["file"] == sound.hex()


def test_documents_are_ranked(served: Served) -> None:
    body = {"model": MODEL, "query": "mills", "documents": ["a", "b"]}
    for path in ("/v1/rerank", "/v2/rerank"):
        answer = served.gateway.http().post(path, json=body)
        assert [result["index"] for result in answer.json()["results"]] == [1, 0]
    refused = served.gateway.http().post("/v1/rerank", json=body | {"documents": []})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")


def test_models_say_what_they_can(client: OpenAI) -> None:
    known = client.models.retrieve(MODEL).model_dump()["millrace"]
    assert known["lanes"] == ["pool"]
    assert "chat" in known["can"]
