"""Ollama's own client, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.conftest import Served
from tests.clients.late_import import late_import
from tests.fakes.whole_api import FILLED, MODEL, TEXT

if TYPE_CHECKING:
    import ollama
else:
    ollama = late_import("ollama")

USER = {"role": "user", "content": "How is the weather in Paris?"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture
def client(served: Served) -> Iterator[ollama.Client]:
    headers = {"Authorization": f"Bearer {served.gateway.api_key}"}
    with ollama.Client(served.gateway.root, headers=headers, trust_env=False) as client:
        yield client


def test_chats_whole_and_streamed(client: ollama.Client) -> None:
    answer = client.chat(MODEL, [USER], options={"temperature": 0.5, "num_predict": 9})
    assert (answer.message.content, answer.done_reason, answer.eval_count) == (TEXT, "stop", 6)
    parts = list(client.chat(MODEL, [USER], stream=True))
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].prompt_eval_count == 12


def test_tools_pictures_and_schemas(client: ollama.Client) -> None:
    parts = list(client.chat(MODEL, [USER], tools=[TOOL], stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", FILLED)]
    told: Any = [
        USER,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "sun", "tool_name": "weather"},
    ]
    assert client.chat(MODEL, told).message.content == "It is sun."
    seen = client.chat(MODEL, [{"role": "user", "content": "What?", "images": ["iVBORw0KGgo="]}])
    assert seen.message.content == "I see 1 pictures."
    assert (
        client.chat(MODEL, [USER], format={"type": "object"}).message.content == '{"city": "Paris", "degrees": 21}'
    )


def test_generates(client: ollama.Client) -> None:
    assert client.generate(MODEL, "Hi", system="Be brief.").response == TEXT
    assert "".join(part.response or "" for part in client.generate(MODEL, "Hi", raw=True, stream=True)) == TEXT


def test_embeds(client: ollama.Client) -> None:
    assert client.embed(MODEL, ["a", "b"]).embeddings == [[0.5, 0.0], [0.5, 1.0]]
    assert client.embeddings(MODEL, "a").embedding == [0.5, 0.0]


def test_lists_and_shows_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "completion" in (client.show(MODEL).capabilities or [])


def test_errors_are_the_clients_own(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        client.chat("none", [USER])
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show("none")


def test_models_are_loaded_and_put_away(client: ollama.Client) -> None:
    """As `ollama run` and `ollama stop` do it."""
    assert (client.generate(MODEL, "").done, client.generate(MODEL, "").done_reason) == (True, "load")
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    (streamed,) = client.chat(MODEL, [], stream=True)
    assert (streamed.message.content, streamed.done_reason) == ("", "load")
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.generate("none")
