"""Requests that get no answer: whose fault it was shows in status and code, and nothing else shows."""

import httpx
import openai
import pytest

from gateway.lanes.cloud.worker.errors import OVERLOADED_RETRY_AFTER, from_litellm
from gateway.lanes.cloud.worker.schemas import expanded_bytes
from tests.fakes import anthropic_provider, openai_provider
from tests.fakes.provider_server import ProviderServer
from tests.gateway.lanes.cloud.conftest import LIMITS
from tests.gateway.lanes.cloud.running import MESSAGES, Json, RunningWorker, all_events_of, checked_error, error_of

PROVIDER_REFUSALS = [
    ("gpt.bad-request", 400, "invalid_value", None),
    ("gpt.bad-key", 502, "provider_auth_failed", None),
    ("gpt.forbidden", 502, "provider_auth_failed", None),
    ("gpt.missing", 502, "provider_model_missing", None),
    ("gpt.too-long", 400, "context_length_exceeded", None),
    ("gpt.filtered", 400, "content_filter", None),
    ("gpt.rate-limited", 429, "provider_rate_limited", "7"),
    ("gpt.broke", 502, "provider_quota_exhausted", None),
    ("gpt.crashes", 502, "provider_failed", None),
    ("gpt.overloaded", 503, "provider_overloaded", "3"),
    ("gpt.garbage", 502, None, None),
    ("gpt-nowhere", 502, "provider_unreachable", None),
    ("gpt-with-password", 502, None, None),
    ("claude.bad-request", 400, "provider_rejected_request", None),
    ("claude.bad-key", 502, "provider_auth_failed", None),
    ("claude.forbidden", 502, "provider_auth_failed", None),
    ("claude.missing", 502, "provider_model_missing", None),
    ("claude.too-long", 400, "context_length_exceeded", None),
    ("claude.rate-limited", 429, "provider_rate_limited", "7"),
    ("claude.crashes", 502, "provider_failed", None),
    ("claude.overloaded", 503, "provider_overloaded", OVERLOADED_RETRY_AFTER),
    ("claude.garbage", 502, None, None),
    ("claude-nowhere", 502, "provider_unreachable", None),
    ("claude-with-password", 502, None, None),
]

CONTROLS = (
    *("api_base", "base_url", "api_key", "extra_headers", "custom_llm_provider", "model_list", "client"),
    *("mock_response", "fallbacks", "num_retries", "timeout", "drop_params", "caching", "callbacks", "extra_body"),
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "status", "code", "retry_after"), PROVIDER_REFUSALS)
def test_a_refusal_before_the_first_byte(
    worker: RunningWorker, model: str, status: int, code: str | None, retry_after: str | None, stream: bool
) -> None:
    response = worker.chat(model, stream=stream)
    error = error_of(response)
    assert response.status_code == status
    assert code is None or error["code"] == code
    assert response.headers.get("retry-after") == retry_after
    for private in (openai_provider.KEY, anthropic_provider.KEY, "hunter2", "litellm", "Traceback"):
        assert private not in response.text


def test_keys_and_passwords_are_blotted_out_of_what_providers_say() -> None:
    said = {"message": "no luck with sk-secret-1 at http://me:hunter2@host/v1"}
    error = openai.APIError("no luck", httpx.Request("POST", "http://host"), body=said)
    refusal = from_litellm(error, "acme", ["sk-secret-1"])
    assert (refusal.status, refusal.code) == (502, "provider_failed")
    assert refusal.message == "acme: no luck with [key] at http://[credentials]@host/v1"


ODD_FIELDS: list[Json] = [
    {"messages": [{"role": "user", "content": [{"text": "one two three"}]}]},
    {"messages": [{"role": "user", "content": ["one two three"]}]},
    {"messages": [{"role": "robot", "content": "one two three"}]},
    {"messages": [{"role": "tool", "content": "one two three"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"detail": "one two three"}}]}]},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function", "function": {"name": "x", "parameters": "one two three"}}]},
    {"response_format": {"type": "json_schema", "json_schema": "one two three"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": 7, "$defs": {"a": {}}}}}},
]


@pytest.mark.parametrize("fields", ODD_FIELDS)
def test_what_litellm_stumbles_over_is_refused_in_our_words(worker: RunningWorker, fields: Json) -> None:
    """litellm's own words hold the prompt and its traceback."""
    response = worker.chat("claude", **fields)
    assert response.status_code == 400
    for private in ("one two", "Traceback", "litellm", "object has", "site-packages"):
        assert private not in response.text + worker.log()


def test_references_do_not_make_a_schema_explode(worker: RunningWorker) -> None:
    doubling = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)}
    schema = {"$defs": doubling | {"d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = worker.chat("claude", response_format=asked)
    assert response.status_code == 400
    assert error_of(response)["param"] == "response_format"


def test_a_schema_with_references_and_circles_passes() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "name": {"$ref": "#/$defs/name"}}}
    schema = {
        "$defs": {"tree": tree, "name": {"type": "string", "description": "x" * 100}},
        "$ref": "#/$defs/tree",
    }
    # The name's description stands among the definitions and again in the tree.
    assert 200 < expanded_bytes(schema) < 1000


@pytest.mark.parametrize("fault", ["aborts", "truncates", "fails-midway", "stalls"])
@pytest.mark.parametrize("provider", ["gpt", "claude"])
def test_a_failure_in_mid_stream_is_an_event_and_never_done(
    worker: RunningWorker, provider: str, fault: str
) -> None:
    codes = {"aborts": "provider_broke_off", "truncates": "provider_broke_off", "stalls": "provider_timeout"}
    *pieces, last = all_events_of(worker.chat(f"{provider}.{fault}", stream=True))
    assert pieces
    assert all(piece["choices"][0]["finish_reason"] is None for piece in pieces)
    assert checked_error(last)["code"] == codes.get(fault, "provider_failed")


@pytest.mark.parametrize("fault", ["aborts", "truncates", "fails-midway"])
def test_a_failure_in_the_middle_of_a_text_completion(worker: RunningWorker, fault: str) -> None:
    *pieces, last = all_events_of(worker.completion(f"gpt.{fault}", stream=True))
    assert "".join(piece["choices"][0]["text"] for piece in pieces).startswith("The mill")
    assert checked_error(last)["code"] in {"provider_broke_off", "provider_failed"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["gpt", "claude"])
def test_a_provider_that_does_not_begin_in_time(
    worker: RunningWorker,
    openai_fake: ProviderServer,
    anthropic_fake: ProviderServer,
    provider: str,
    stream: bool,
) -> None:
    response = worker.chat(f"{provider}.slow-first-byte", stream=stream)
    assert response.status_code == 504
    assert error_of(response)["code"] == "provider_timeout"
    fake = openai_fake if provider == "gpt" else anthropic_fake
    fake.wait_until("fake.slow-first-byte", "cancelled")


def test_a_stream_that_takes_longer_than_the_whole_may(worker: RunningWorker, openai_fake: ProviderServer) -> None:
    *pieces, last = all_events_of(worker.chat("gpt.slow-chunks", stream=True))
    assert len(pieces) > 10
    assert checked_error(last)["code"] == "provider_timeout"
    openai_fake.wait_until("fake.slow-chunks", "cancelled")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frobnicate": 1}, "frobnicate"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"n": 2, "stream": True}, "n"),
    ],
)
def test_a_wrong_field_is_named(worker: RunningWorker, fields: Json, param: str) -> None:
    response = worker.chat("gpt", **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize("control", CONTROLS)
def test_litellms_own_controls_are_out_of_reach(
    worker: RunningWorker, openai_fake: ProviderServer, control: str
) -> None:
    before = len(openai_fake.requests)
    response = worker.chat("gpt", **{control: "http://127.0.0.1:9/"})
    assert response.status_code == 400
    assert error_of(response)["param"] == control
    assert len(openai_fake.requests) == before


def test_a_parameter_the_provider_does_not_know_is_named(worker: RunningWorker) -> None:
    response = worker.chat("claude", seed=1)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "seed")


def test_images_are_not_fetched_on_a_clients_word(worker: RunningWorker, anthropic_fake: ProviderServer) -> None:
    image = {"type": "image_url", "image_url": {"url": anthropic_fake.origin + "/secret.png"}}
    response = worker.chat("claude", messages=[{"role": "user", "content": [image]}])
    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"model": NaN}', b"\xff\xfe", b'{"model":"gpt","messages":' + b"[" * 90_000]
)
def test_a_body_that_is_no_request(worker: RunningWorker, body: bytes) -> None:
    response = worker.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["code"] in {"invalid_json", "invalid_value"}


def test_a_body_that_is_too_large(worker: RunningWorker) -> None:
    response = worker.client.post("/v1/chat/completions", content=b" " * (LIMITS.body_bytes_max + 1))
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"
    assert worker.chat("gpt").status_code == 200


def test_an_unknown_model(worker: RunningWorker) -> None:
    response = worker.chat("nobody")
    assert response.status_code == 404
    assert error_of(response) == {
        "message": "The model nobody is not configured for the cloud lane.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_a_model_of_an_unknown_provider(worker: RunningWorker) -> None:
    response = worker.chat("misnamed")
    assert response.status_code == 502
    assert error_of(response)["code"] == "provider_unknown"


def test_an_unknown_path(worker: RunningWorker) -> None:
    assert worker.client.post("/v1/embeddings", json={}).status_code == 404
    assert worker.client.get("/v1/chat/completions").status_code == 404
