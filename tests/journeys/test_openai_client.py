"""The main journey as its users travel it: the official client, a model over two node processes, the ledger."""

import json
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletionMessageParam

from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway, until
from tests.openai_schemas import check

MODEL = DEMO_MODEL.name
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a river?"}]
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "depth_m": {"type": "integer", "maximum": 99}},
    "required": ["name", "depth_m"],
    "additionalProperties": False,
}


def test_the_validator_can_fail() -> None:
    with pytest.raises(AssertionError):
        check("CreateChatCompletionResponse", {"id": "x"})


def test_a_whole_chat(gateway: Gateway) -> None:
    raw = gateway.openai().chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=40
    )
    check("CreateChatCompletionResponse", json.loads(raw.content))
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-millrace-lane"] == "cluster"
    assert "cluster" in raw.headers["x-millrace-reason"]


def test_a_streamed_chat_says_the_same(gateway: Gateway) -> None:
    client = gateway.openai()
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks: list[Any] = list(raw.parse())
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk.model_dump(mode="json", exclude_unset=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert not chunks[-1].choices
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_usage_comes_only_when_asked_for(gateway: Gateway) -> None:
    stream = gateway.openai().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=3, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_completions(gateway: Gateway) -> None:
    client = gateway.openai()
    raw = client.completions.with_raw_response.create(
        model=MODEL, prompt=["A river", "The sea"], temperature=0, max_tokens=6, echo=True
    )
    check("CreateCompletionResponse", json.loads(raw.content))
    first, second = raw.parse().choices
    assert first.text.startswith("A river")
    assert second.text.startswith("The sea")
    request = {"model": MODEL, "prompt": "A river", "temperature": 0, "max_tokens": 6}
    with gateway.http() as http:
        named = http.post("/v1/completions", json=request | {"logprobs": 2}).json()
        events = http.post("/v1/completions", json=request | {"stream": True}).text.split("\n\n")
    check("CreateCompletionResponse", named)
    assert "A river" + "".join(named["choices"][0]["logprobs"]["tokens"]) == first.text
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events if "{" in event]
    assert all(choice["logprobs"] is None for choice in choices), "the document asks for the field, null or not"
    assert "A river" + "".join(choice["text"] for choice in choices) == first.text


def test_choices_logprobs_and_stops(gateway: Gateway) -> None:
    client = gateway.openai()
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, seed=5, max_tokens=8, logprobs=True, top_logprobs=3
    )
    check("CreateChatCompletionResponse", answer.model_dump(mode="json", exclude_unset=True))
    again = client.chat.completions.create(model=MODEL, messages=QUESTION, n=2, seed=5, max_tokens=8)
    assert [c.message.content for c in answer.choices] == [c.message.content for c in again.choices]
    content = answer.choices[0].logprobs
    assert content
    assert content.content
    assert all(len(token.top_logprobs) == 3 for token in content.content)
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=30)
    text = whole.choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    stopped = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=30, stop=[stop]
    )
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_models(gateway: Gateway) -> None:
    client = gateway.openai()
    check("ListModelsResponse", client.models.with_raw_response.list().http_response.json())
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme/nothing")


def test_errors_become_the_clients_exceptions(gateway: Gateway) -> None:
    client = gateway.openai()
    with pytest.raises(openai.AuthenticationError) as wrong_key:
        gateway.openai("mr-wrong").chat.completions.create(model=MODEL, messages=QUESTION)
    with pytest.raises(openai.AuthenticationError):
        gateway.openai("mr-wrong").models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nothing", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert unknown.value.code == "model_not_found"
    assert long.value.code == "context_length_exceeded"
    assert tools.value.param == "tools"
    for caught in (wrong_key, unknown, long, tools):
        check("ErrorResponse", caught.value.response.json())


def test_every_request_is_booked_and_logged(gateway: Gateway) -> None:
    raw = gateway.openai().chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=5
    )
    answer, request_id = raw.parse(), raw.headers["x-request-id"]
    record = gateway.record(request_id)
    assert answer.usage
    assert (record["prompt_tokens"], record["completion_tokens"]) == (answer.usage.prompt_tokens, 5)
    assert record["outcome"] == "complete"
    assert record["lane"] == "cluster"
    assert record["event_seq"] > 0
    assert record["decision"]["candidates"][0]["lane"] == "cluster"
    refused = gateway.http().post("/v1/chat/completions", json={"model": "nothing", "messages": QUESTION})
    record = gateway.record(refused.headers["x-request-id"])
    assert (record["status"], record["outcome"], record["lane"]) == (404, "refused", "none")
    shown = gateway.cli("requests", "--limit", "5")
    assert request_id in shown
    assert "cluster: about" in shown


def test_hanging_up_ends_the_work_and_books_what_came(gateway: Gateway) -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": True, "ignore_eos": True, "max_tokens": 900}
    with gateway.http().stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(10):
            next(lines)
    record = gateway.record(answer.headers["x-request-id"])
    assert record["outcome"] == "interrupted"
    assert record["prompt_tokens"] > 0
    assert 0 < record["completion_tokens"] < 800
    until(lambda: "millrace_in_flight 0.0" in gateway.http().get("/metrics").text or None)


def test_health_and_metrics(gateway: Gateway) -> None:
    raw = gateway.openai().chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1)
    gateway.record(raw.headers["x-request-id"])
    with gateway.http() as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json()["status"] == "ready"
        text = client.get("/metrics").text
    assert 'millrace_requests_total{lane="cluster",outcome="complete"}' in text
    assert "millrace_cluster_nodes 2.0" in text


def test_nodes_hold_half_of_the_model_each(gateway: Gateway) -> None:
    cluster = json.loads(gateway.cli("nodes", "--json"))
    assert cluster["predicted"]["token_s"] > 0
    nodes = cluster["nodes"]
    assert all("remedy" in warning for node in nodes for warning in node["warnings"])
    draft = json.loads(gateway.cli("machines", "drain", nodes[0]["node"], "--dry-run", "--json"))
    assert [stage["node"] for stage in draft["then"]["stages"]] == [nodes[1]["node"]]
    assert len(json.loads(gateway.cli("nodes", "--json"))["nodes"]) == len(draft["now"]["stages"]) == 2
    layers = json.loads((DEMO_MODEL / "config.json").read_text())["num_hidden_layers"]
    (first, end), (second, last) = (node["layers"] for node in nodes)
    assert first == 0
    assert second == end + 1
    assert last == layers - 1
    assert abs((end + 1) - layers / 2) <= 0.5


def shape(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}


def test_a_schema_is_kept_to(gateway: Gateway) -> None:
    client = gateway.openai()
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format=shape(PLACE), max_tokens=200, temperature=1.2, seed=4
    )
    assert whole.choices[0].finish_reason == "stop"
    Draft202012Validator(PLACE).validate(json.loads(whole.choices[0].message.content or ""))
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        response_format=shape(PLACE),
        max_tokens=200,
        temperature=1.2,
        seed=4,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content


def test_what_cannot_be_had_is_refused_by_name(gateway: Gateway) -> None:
    client = gateway.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, response_format=shape({"type": "frob"}), max_tokens=9
        )
    assert refused.value.param == "response_format"
    # The demo model's template has no place for tools.
    with pytest.raises(openai.APIStatusError) as lacking:
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=[{"type": "function", "function": {"name": "f"}}], max_tokens=9
        )
    assert 400 <= lacking.value.status_code < 500
    assert lacking.value.param == "tools"
