"""Good answers through litellm's adapters: OpenAI's and Anthropic's wire formats, whole and streamed."""

from typing import Any

import httpx
import openai
import pytest

from tests.fakes import anthropic_provider, openai_provider
from tests.fakes.provider_server import ProviderServer
from tests.gateway.lanes.cloud.running import (
    ANSWER,
    ANSWER_TOKENS,
    MESSAGES,
    PROMPT_TOKENS,
    Json,
    RunningWorker,
    events_of,
)

MODELS = ("gpt", "claude")
WITH_USAGE = {"include_usage": True}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CHUNK_FIELDS = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"}


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_answer_has_the_standard_fields_and_no_others(worker: RunningWorker, model: str) -> None:
    answer = worker.chat(model).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == model
    assert set(answer) <= CHUNK_FIELDS
    assert answer["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": ANSWER, "refusal": None},
        }
    ]
    _check_usage(answer["usage"])


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_has_the_standard_fields_and_no_others(worker: RunningWorker, model: str) -> None:
    events = events_of(worker.chat(model, stream=True, stream_options=WITH_USAGE))
    *pieces, last = events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert {event["model"] for event in events} == {model}
    assert len({event["id"] for event in events}) == 1
    assert all(set(event) <= CHUNK_FIELDS for event in events)
    assert all(set(piece["choices"][0]) == {"index", "delta", "finish_reason", "logprobs"} for piece in pieces)
    assert all(set(piece["choices"][0]["delta"]) <= {"role", "content"} for piece in pieces)
    assert all(piece["usage"] is None for piece in pieces)
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [piece["choices"][0]["finish_reason"] for piece in pieces][-2:] == [None, "stop"]
    assert _text(events) == ANSWER
    assert last["choices"] == []
    _check_usage(last["usage"])


@pytest.mark.parametrize("model", MODELS)
def test_usage_is_streamed_only_when_asked_for(worker: RunningWorker, model: str) -> None:
    events = events_of(worker.chat(model, stream=True))
    assert all("usage" not in event for event in events)
    assert all(event["choices"] for event in events)


def test_no_usage_is_made_up_where_the_provider_counts_nothing(worker: RunningWorker) -> None:
    assert worker.chat("gpt.no-usage").json()["usage"] is None
    events = events_of(worker.chat("gpt.no-usage", stream=True, stream_options=WITH_USAGE))
    assert _text(events) == ANSWER
    assert all(event["usage"] is None for event in events)


@pytest.mark.parametrize("model", MODELS)
def test_tools_reach_the_provider_and_calls_come_back_whole(worker: RunningWorker, model: str) -> None:
    choice = worker.chat(f"{model}.tool", tools=[WEATHER]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}


@pytest.mark.parametrize("model", MODELS)
def test_tool_calls_are_streamed_piece_by_piece(worker: RunningWorker, model: str) -> None:
    events = events_of(worker.chat(f"{model}.tool", tools=[WEATHER], stream=True))
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "weather"
    assert calls[0]["id"]
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert len(calls) > 2
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_anthropic_gets_tools_in_its_own_form(worker: RunningWorker, anthropic_fake: ProviderServer) -> None:
    worker.chat("claude.tool", tools=[WEATHER], tool_choice="required")
    asked = anthropic_fake.last("fake.tool").body
    assert asked["tools"][0]["name"] == "weather"
    assert asked["tools"][0]["input_schema"]["properties"] == {"city": {"type": "string"}}
    assert asked["tool_choice"]["type"] == "any"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_kept(worker: RunningWorker, stream: bool) -> None:
    response = worker.chat("gpt", logprobs=True, top_logprobs=1, max_tokens=1, stream=stream)
    choices = [event["choices"][0] for event in (events_of(response) if stream else [response.json()])]
    (logprobs,) = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert logprobs["content"][0]["token"] == "The "
    assert logprobs["content"][0]["logprob"] == -0.25
    assert logprobs["content"][0]["top_logprobs"][0]["bytes"] == list(b"The ")
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_model_is_kept(worker: RunningWorker, stream: bool) -> None:
    response = worker.chat("gpt.declines", stream=stream)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events_of(response)]
        assert "".join(delta.get("refusal") or "" for delta in deltas) == ANSWER
    else:
        assert response.json()["choices"][0]["message"] == {
            "role": "assistant",
            "content": None,
            "refusal": ANSWER,
        }


def test_several_answers_come_whole(worker: RunningWorker) -> None:
    choices = worker.chat("gpt", n=2).json()["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(0, ANSWER), (1, ANSWER)]


@pytest.mark.parametrize("model", MODELS)
def test_a_text_completion(worker: RunningWorker, model: str) -> None:
    answer = worker.completion(model).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == model
    assert answer["choices"] == [{"index": 0, "finish_reason": "stop", "logprobs": None, "text": ANSWER}]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == ANSWER_TOKENS


@pytest.mark.parametrize("model", MODELS)
def test_a_streamed_text_completion(worker: RunningWorker, model: str) -> None:
    *pieces, last = events_of(worker.completion(model, stream=True, stream_options=WITH_USAGE))
    assert {piece["object"] for piece in pieces} == {"text_completion"}
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == ANSWER
    assert [piece["choices"][0]["finish_reason"] for piece in pieces][-2:] == [None, "stop"]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 3 + ANSWER_TOKENS


def test_what_openai_receives(worker: RunningWorker, openai_fake: ProviderServer) -> None:
    worker.chat("gpt", temperature=0.5, seed=7, stop=["x"], metadata={"a": "b"}, top_k=3, stream=True)
    received = openai_fake.last("fake")
    assert received.headers["authorization"] == f"Bearer {openai_provider.KEY}"
    assert received.body == {
        "model": "fake",
        "messages": MESSAGES,
        "temperature": 0.5,
        "seed": 7,
        "stop": ["x"],
        "metadata": {"a": "b"},
        "top_k": 3,
        "stream": True,
    }


def test_what_anthropic_receives(worker: RunningWorker, anthropic_fake: ProviderServer) -> None:
    system = {"role": "system", "content": "Be brief."}
    worker.chat("claude", messages=[system, *MESSAGES], max_tokens=99, stop=["x"], metadata={"a": "b"})
    received = anthropic_fake.last("fake")
    assert received.headers["x-api-key"] == anthropic_provider.KEY
    assert "authorization" not in received.headers
    assert "metadata" not in received.body
    assert received.body["system"] == [{"type": "text", "text": "Be brief."}]
    assert received.body["max_tokens"] == 99
    assert received.body["stop_sequences"] == ["x"]
    assert [message["role"] for message in received.body["messages"]] == ["user"]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_connections_to_a_provider_are_used_again(
    worker: RunningWorker, openai_fake: ProviderServer, kind: str
) -> None:
    for _ in range(4):
        (worker.chat if kind == "chat" else worker.completion)("gpt")
    assert len({received.connection for received in openai_fake.requests[-4:]}) == 1


def test_the_official_client_reads_both_kinds_of_answer(worker: RunningWorker) -> None:
    transport = httpx.HTTPTransport(uds=str(worker.socket_path))
    with openai.OpenAI(
        api_key="unused", base_url="http://cloud/v1", http_client=httpx.Client(transport=transport)
    ) as client:
        messages: Any = MESSAGES
        whole = client.chat.completions.create(model="claude", messages=messages)
        assert whole.choices[0].message.content == ANSWER
        with client.chat.completions.create(model="claude", messages=messages, stream=True) as stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


def _check_usage(usage: Json) -> None:
    assert usage["prompt_tokens"] == PROMPT_TOKENS
    assert usage["completion_tokens"] == ANSWER_TOKENS
    assert usage["total_tokens"] == PROMPT_TOKENS + ANSWER_TOKENS
    assert usage["prompt_tokens_details"]["cached_tokens"] == openai_provider.CACHED_TOKENS
    assert set(usage["prompt_tokens_details"]) <= {"cached_tokens", "audio_tokens", "cache_write_tokens"}
    assert set(usage["completion_tokens_details"]) <= {"reasoning_tokens", "audio_tokens"}


def _text(events: list[Json]) -> str:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
