"""What a backend says is read by nobody who could break over it: readers and writers take any bytes."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.dialects.base import Question, Route
from gateway.dialects.openai import read_request
from gateway.dialects.routes import ROUTES
from gateway.lanes.base import Call, Meter
from gateway.lanes.events import Reader, StreamReader
from gateway.lanes.json_body import WholeReader
from runtime.errors import LaneFailed, ServiceError
from tests.examples import examples
from tests.fakes.broken_upstream import CHAT

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
DEEP = b"[" * 1500 + b"]" * 1500
# The names that are looked for, with anything behind them.
NAMES = (
    "choices", "usage", "error", "message", "delta", "content", "tool_calls", "function", "arguments", "index",
    "finish_reason", "data", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens",
    "code", "id", "name", "embedding", "logprobs", "text",
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**40) | st.just(0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
events = st.dictionaries(st.sampled_from(NAMES), values, max_size=5) | values
bodies = events.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)
streams = st.lists(
    bodies.map(lambda body: b"data: " + body + b"\n\n") | st.binary(max_size=20) | st.just(b"data: [DONE]\n\n"),
    max_size=5,
).map(b"".join)


def call(*, stream: bool) -> Call:
    raw = json.dumps(ASKED | {"stream": stream}).encode()
    return Call("req_1", "chat", read_request("chat", raw), raw)


def read(reader: Reader, asked: Call, content: bytes, cuts: list[int]) -> Meter:
    """What the relay does with it."""
    at = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    for start, end in pairwise(at):
        reader.feed(content[start:end])
    reader.end()
    assert reader.is_whole in (True, False)
    assert reader.refusal is None or reader.refusal is not None
    meter = Meter()
    reader.fill(meter)
    return meter


WHOLE = (
    b'{"error": "\xff"}',
    b'{"error": ' + DEEP + b"}",
    b'{"choices": [], "usage": {"x": "\xff"}}',
    b'{"choices": [], "usage": ' + DEEP + b"}",
    b'{"choices": ["\xff"]}',
    b'{"choices": [{"message": {"content": "\\ud800"}}]}',
    b'{"choices": ' + DEEP + b"}",
    b'{"choices": [], "usage": {"prompt_tokens": 1e400}}',
    b'{"error": 1e400}',
    b'{"choices": 1e400, "error": NaN}',
)


@pytest.mark.parametrize("content", WHOLE, ids=range(len(WHOLE)))
def test_whole_answers_that_are_none(content: bytes) -> None:
    asked = call(stream=False)
    assert read(WholeReader(asked, 200), asked, content, []).completion_tokens < 10_000


@given(bodies, st.lists(st.integers(0, 200), max_size=3))
@example(CHAT, [1, 2])
def test_any_bytes_are_an_answer_or_none(content: bytes, cuts: list[int]) -> None:
    asked = call(stream=False)
    read(WholeReader(asked, 200), asked, content, cuts)


@settings(max_examples=examples(30, 150))
@given(streams, st.lists(st.integers(0, 400), max_size=4), st.booleans())
@example(b'data: {"error": ' + DEEP + b"}\n\n", [], False)
@example(b'data: {"choices":[{"finish_reason":"stop","index":[]}]}\n\n', [], False)
@example(b'data: {"choices":[{"delta":{"content":"\\ud800"}}],"usage":{"a":1}}\n\n', [], True)
@example(b'data: {"usage":{"prompt_tokens":1e400}}\n\ndata: [DONE]', [], True)
def test_any_bytes_are_a_stream_or_none(content: bytes, cuts: list[int], is_paid: bool) -> None:
    asked = call(stream=True)
    try:
        read(StreamReader(asked, is_paid=is_paid), asked, content, cuts)
    except LaneFailed as failed:
        assert str(failed)


WRITERS = [route for route in ROUTES if route.writer]
QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": ASKED | {"max_tokens": 5},
    "/api/chat": ASKED,
    "/api/generate": {"model": "m", "prompt": "Hi"},
    "/api/embed": {"model": "m", "input": "Hi"},
    "/api/embeddings": {"model": "m", "prompt": "Hi"},
}


def asks(route: Route, *, stream: bool) -> Question:
    return route.read(json.dumps(QUESTIONS[route.path] | {"stream": stream}).encode())


@pytest.mark.parametrize("route", WRITERS, ids=lambda route: route.path)
@settings(max_examples=examples(20, 60))
@given(content=streams | bodies, cut=st.integers(0, 200), stream=st.booleans())
@example(content=b'{"error": ' + DEEP + b"}", cut=5, stream=False)
@example(content=b'{"choices": [{"message": {"tool_calls": [{"function": null}]}}]}', cut=5, stream=False)
@example(content=b'{"data": [{"embedding": "\\ud800"}]}', cut=5, stream=False)
@example(
    content=b'data: {"choices":[{"delta":{"tool_calls":[{"index":-1,"function":{}}]}}]}\n\n', cut=5, stream=True
)
def test_writers_write_whatever_comes(route: Route, content: bytes, cut: int, stream: bool) -> None:
    writer = route.writer_for(asks(route, stream=stream), "req_1", 200)
    assert writer
    written = writer.feed(content[:cut]) + writer.feed(content[cut:]) + writer.end()
    assert isinstance(written, bytes)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@settings(max_examples=examples(20, 60))
@given(raw=bodies, extra=st.dictionaries(st.sampled_from((*NAMES, "stream", "model", "input", "prompt", "tools",
       "messages", "max_tokens", "stop", "provider", "millrace", "options", "system", "query", "documents")),
       values, max_size=4), is_extra=st.booleans())  # fmt: skip
def test_any_body_is_a_question_or_refused_by_name(
    route: Route, raw: bytes, extra: dict[str, Any], is_extra: bool
) -> None:
    base = QUESTIONS.get(route.path, ASKED)
    refuses(route.read, json.dumps(base | extra).encode() if is_extra else raw)


def refuses(reads: Callable[[bytes], Question], raw: bytes) -> None:
    try:
        question = reads(raw)
    except ServiceError as error:
        assert error.message
        return
    assert question.raw
