"""Whatever comes in: a 4xx that names the field, never a 500, and the next request is served."""

import json
from typing import Any

import pytest

from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway

MODEL = DEMO_MODEL.name
GOOD: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def body(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


CASES: list[tuple[str, bytes, int, str | None]] = [
    ("nothing", b"", 400, None),
    ("malformed", b'{"model": "m", ', 400, None),
    ("no object", b"[1, 2]", 400, None),
    ("invalid UTF-8", b'{"model": "\xff\xfe"}', 400, None),
    ("half a surrogate", b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, None),
    ("no messages", json.dumps({"model": MODEL}).encode(), 400, "messages"),
    ("no model", json.dumps({"messages": GOOD["messages"]}).encode(), 400, "model"),
    ("empty messages", body(messages=[]), 400, "messages"),
    ("wrong type of model", body(model=7), 400, "model"),
    ("wrong type of messages", body(messages="hi"), 400, "messages"),
    ("wrong role", body(messages=[{"role": "robot", "content": "x"}]), 400, "messages[0].role"),
    ("wrong content", body(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content"),
    ("unknown model", body(model="no/such/model"), 404, "model"),
    ("path in model", body(model="../../etc/passwd"), 404, "model"),
    ("control characters in model", body(model="a\x00b"), 400, "model"),
    ("negative max_tokens", body(max_tokens=-1), 400, "max_tokens"),
    ("zero max_tokens", body(max_tokens=0), 400, "max_tokens"),
    ("fractional max_tokens", body(max_tokens=1.5), 400, "max_tokens"),
    ("huge max_tokens", body(max_tokens=10**30), 400, "max_tokens"),
    ("large max_tokens", body(max_tokens=10**6), 400, "max_tokens"),
    ("two limits", body(max_tokens=5, max_completion_tokens=6), 400, "max_completion_tokens"),
    ("textual max_tokens", body(max_tokens="7"), 400, "max_tokens"),
    ("NaN", json.dumps(GOOD | {"temperature": float("nan")}).encode(), 400, "temperature"),
    ("infinity", json.dumps(GOOD | {"top_p": float("inf")}).encode(), 400, "top_p"),
    ("too large a number", body()[:-1] + b',"temperature":1e999}', 400, "temperature"),
    ("hot", body(temperature=3), 400, "temperature"),
    ("n of zero", body(n=0), 400, "n"),
    ("many choices", body(n=100000), 400, "n"),
    ("many stops", body(stop=["x"] * 10_000), 400, "stop"),
    ("empty stop", body(stop=[""]), 400, "stop[0]"),
    ("logit_bias of words", body(logit_bias={"river": 1}), 400, "logit_bias"),
    ("logit_bias beyond", body(logit_bias={"1": 1e6}), 400, "logit_bias[...]"),
    ("logit_bias of a number too long", body(logit_bias={"9" * 5000: 1}), 400, "logit_bias"),
    ("many biases", body(logit_bias={str(token): 1 for token in range(5000)}), 400, "logit_bias"),
    ("no content", body(messages=[{"role": "user", "content": None}]), 400, "messages[0].content"),
    (
        "a text part without text",
        body(messages=[{"role": "user", "content": [{"type": "text"}]}]),
        400,
        "messages[0].content[0].text",
    ),
    (
        "calls that it would not see",
        body(messages=[*GOOD["messages"], {"role": "tool", "content": "42", "tool_call_id": "c"}]),
        400,
        "messages[1]",
    ),
    ("top_logprobs alone", body(top_logprobs=2), 400, "top_logprobs"),
    ("stream_options alone", body(stream_options={"include_usage": True}), 400, "stream_options"),
    ("stream of text", body(stream="yes"), 400, "stream"),
    ("deep nesting", b'{"model":"m","messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "messages[0]"),
    (
        "deep nesting elsewhere",
        body()[:-1] + b',"metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        400,
        None,
    ),
    ("unknown extra", body(millrace={"fly": True}), 400, "millrace"),
    ("a search", body(web_search_options={}), 400, "web_search_options"),
    ("a file", body(messages=[{"role": "user", "content": [{"type": "file"}]}]), 400, "messages[0].content[0]"),
    ("a long prompt", body(messages=[{"role": "user", "content": "word " * 20_000}]), 400, "messages"),
    ("40 MB", body(messages=[{"role": "user", "content": "a" * 40_000_000}]), 413, None),
]


@pytest.mark.parametrize(
    ("content", "status", "param"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_is_refused_by_name(gateway: Gateway, content: bytes, status: int, param: str | None) -> None:
    with gateway.http() as client:
        answer = client.post("/v1/chat/completions", content=content)
        error = answer.json()["error"]
        assert answer.status_code == status, error
        assert error["param"] == param
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        assert client.post("/v1/chat/completions", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "two"]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-5]}, "prompt[0]"),
        ({"prompt": [10**30]}, "prompt[0]"),
        ({"prompt": [[-(2**70)]]}, "prompt[0][0]"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": "x", "echo": True, "n": 129}, "n"),
        ({"prompt": ["x"] * 200}, "n"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
    ],
)
def test_completions_are_checked_too(gateway: Gateway, changes: dict[str, Any], param: str) -> None:
    with gateway.http() as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "max_tokens": 2} | changes)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_unknown_paths_and_methods(gateway: Gateway) -> None:
    with gateway.http() as client:
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models", 405),
        ):
            answer = client.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["code"] in ("not_found", "method_not_allowed")


@pytest.mark.parametrize("header", ["", "Bearer", "Basic abc", "Bearer \xff\xfe", "Bearer mr-" + "x" * 5000])
def test_keys_of_all_shapes_are_refused(gateway: Gateway, header: str) -> None:
    with gateway.http() as client:
        answer = client.post(
            "/v1/chat/completions", json=GOOD, headers=[(b"authorization", header.encode("latin-1"))]
        )
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
