"""Anthropic's own client, as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.clients.conftest import Served
from tests.clients.late_import import late_import
from tests.fakes.whole_api import FILLED, MODEL, TEXT

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = late_import("anthropic")

TOOL: anthropic.types.ToolParam = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
USER: anthropic.types.MessageParam = {"role": "user", "content": "How is the weather in Paris?"}


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=served.gateway.root,
        api_key=served.gateway.api_key,
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def test_a_message_whole_and_streamed(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=64, system="Be brief.", messages=[USER])
    assert [block.text for block in message.content if block.type == "text"] == [TEXT]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 6)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (10, 2)
    with client.messages.stream(model=MODEL, max_tokens=64, messages=[USER]) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 6


def test_tools_are_called_and_answered(client: anthropic.Anthropic, served: Served) -> None:
    tools = [TOOL, TOOL | {"name": "time"}]
    with client.messages.stream(model=MODEL, max_tokens=64, messages=[USER], tools=tools) as stream:
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("weather", FILLED), ("time", FILLED)]
    assert message.stop_reason == "tool_use"
    results: list[anthropic.types.ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls
    ]
    history: list[anthropic.types.MessageParam] = [
        USER,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=history, tools=tools)
    assert [block.text for block in answer.content if block.type == "text"] == ["It is sunny and sunny."]
    sent = served.backend.last(MODEL).body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]


def test_tools_that_the_client_has_found_are_named(client: anthropic.Anthropic, served: Served) -> None:
    """Claude Code looks for tools by itself, and sends those it has found with the next request."""
    found: anthropic.types.ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": "call_1",
        "content": [{"type": "tool_reference", "tool_name": "weather"}],
    }
    history: list[anthropic.types.MessageParam] = [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "search", "input": {}}]},
        {"role": "user", "content": [found]},
    ]
    client.messages.create(model=MODEL, max_tokens=64, messages=history, tools=[TOOL])
    sent = served.backend.last(MODEL).body["messages"][-1]
    assert (sent["role"], sent["content"]) == ("tool", "The tool weather can be called now.")


def test_pictures_are_seen(client: anthropic.Anthropic) -> None:
    picture: anthropic.types.ImageBlockParam = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGFsbG8="},
    }
    asked: anthropic.types.MessageParam = {"role": "user", "content": [picture, {"type": "text", "text": "What?"}]}
    message = client.messages.create(model=MODEL, max_tokens=64, messages=[asked])
    assert message.content[0].type == "text"
    assert message.content[0].text == "I see 1 pictures."


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    few = client.messages.count_tokens(model=MODEL, messages=[USER])
    more = client.messages.count_tokens(model=MODEL, messages=[USER], tools=[TOOL], system="Be brief.")
    assert 0 < few.input_tokens < more.input_tokens


def test_counting_is_within_what_a_key_may(served: Served) -> None:
    """Another lane's models are not there at all, and each count is one of the key's requests."""
    root, asked = served.gateway.root, {"model": MODEL, "messages": [USER], "input": "Hi"}
    paths = ("/v1/messages/count_tokens", "/v1/responses/input_tokens")
    made = [
        json.loads(served.gateway.cli("key", "create", "count", "--json", *words))
        for words in (("--lanes", "pool"), ("--lanes", "cluster"), ("--lanes", "pool", "--models", "other"))
    ]
    served.gateway.cli("key", "limit", made[0]["key_id"], "requests", "2", "--per", "minute")
    with httpx.Client(base_url=root, trust_env=False) as client:
        limited, elsewhere, other = ({"x-api-key": key["api_key"]} for key in made)
        assert [client.post(path, json=asked, headers=limited).status_code for path in (*paths, *paths)] == [
            *(200, 200),
            *(429, 429),
        ]
        assert client.post(paths[0], json=asked | {"model": "none"}, headers=limited).status_code == 404
        for headers in (elsewhere, other):
            assert [client.post(path, json=asked, headers=headers).status_code for path in paths] == [404, 404]
        listed = client.get("/v1/models", headers={"authorization": f"Bearer {elsewhere['x-api-key']}"}).json()
        assert listed["data"] == []


def test_errors_are_the_clients_own(client: anthropic.Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="none", max_tokens=1, messages=[USER])
    assert isinstance(missing.value.body, dict)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]"):
        hosted: anthropic.types.WebSearchTool20250305Param = {"type": "web_search_20250305", "name": "web_search"}
        client.messages.create(model=MODEL, max_tokens=1, messages=[USER], tools=[hosted])
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="mr-wrong").messages.count_tokens(model=MODEL, messages=[USER])
    refused = served.gateway.http().post("/v1/messages", json={"model": MODEL, "messages": [USER]})
    assert refused.status_code == 400
    assert "max_tokens" in json.loads(refused.content)["error"]["message"]
