"""What all writers promise: nothing is lost, nothing depends on how bytes are cut, and what breaks is said."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Route, Writer
from gateway.dialects.routes import ROUTES
from runtime.http.api_error import ApiError
from tests.gateway.dialects.streams import Answer, Json, event, lines, sse

BROKEN = ApiError(502, "It broke.", "upstream_error")
# What differs from one answer to the next: times, durations, and nothing else.
VARYING = re.compile(rb'"(created_at|completed_at|\w+_duration)":("[^"]*"|[\d.]+)')


@dataclass(frozen=True)
class Dialect:
    """A dialect that chats: a question in it, and how to read what it said from an answer."""

    path: str
    question: Json
    stream: Json
    texts: Callable[[bytes], str]
    whole_text: Callable[[Json], str]
    errors: Callable[[bytes], list[str]]

    @property
    def route(self) -> Route:
        return next(route for route in ROUTES if route.path == self.path)

    def writer(self, *, is_stream: bool) -> Writer:
        flag = self.stream if is_stream else {"stream": False}
        question = self.route.read(json.dumps(self.question | flag).encode())
        writer = self.route.writer_for(question, "req_1", 200)
        assert writer
        return writer


def _deltas(kind: str, field: Callable[[Json], Any]) -> Callable[[bytes], str]:
    return lambda written: "".join(str(field(data)) for name, data in sse(written) if name == kind)


def _anthropic_text(written: bytes) -> str:
    deltas = (data["delta"] for name, data in sse(written) if name == "content_block_delta")
    return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
DIALECTS = (
    Dialect(
        "/v1/responses",
        {"model": "m", "input": "Hi"},
        {"stream": True},
        _deltas("response.output_text.delta", lambda data: data["delta"]),
        lambda answer: "".join(
            p["text"] for i in answer["output"] if i["type"] == "message" for p in i["content"]
        ),
        lambda written: [data["message"] for name, data in sse(written) if name == "error"],
    ),
    Dialect(
        "/v1/messages",
        ASKED | {"max_tokens": 9},
        {"stream": True},
        _anthropic_text,
        lambda answer: "".join(block["text"] for block in answer["content"] if block["type"] == "text"),
        lambda written: [data["error"]["message"] for name, data in sse(written) if name == "error"],
    ),
    Dialect(
        "/api/chat",
        ASKED,
        {},
        lambda written: "".join(line["message"]["content"] for line in lines(written)),
        lambda answer: str(answer["message"]["content"]),
        lambda written: [line["error"] for line in lines(written) if "error" in line],
    ),
    Dialect(
        "/api/generate",
        {"model": "m", "prompt": "Hi"},
        {},
        lambda written: "".join(line["response"] for line in lines(written)),
        lambda answer: str(answer["response"]),
        lambda written: [line["error"] for line in lines(written) if "error" in line],
    ),
)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.path for dialect in DIALECTS])

texts = st.lists(st.text(max_size=12), max_size=6).map(tuple)
calls = st.lists(st.tuples(st.sampled_from(["look", "go"]), st.just(('{"a"', ": 1}"))), max_size=3).map(tuple)
answers = st.builds(Answer, texts=texts, thoughts=texts, calls=calls)


FIELDS = (
    *("choices", "delta", "message", "content", "text", "tool_calls", "function", "arguments", "name", "id"),
    *("index", "usage", "prompt_tokens", "error", "message", "finish_reason", "logprobs", "top_logprobs"),
    *("prompt_tokens_details", "cached_tokens", "reasoning_content", "refusal", "function_call", "stop_reason"),
)


def written(writer: Writer, upstream: bytes, cuts: list[int]) -> bytes:
    places = sorted({min(cut, len(upstream)) for cut in cuts} | {0, len(upstream)})
    pieces = [upstream[start:end] for start, end in itertools.pairwise(places)]
    return b"".join(map(writer.feed, pieces)) + writer.end()


@every_dialect
@given(answer=answers, cuts=st.lists(st.integers(0, 4000), max_size=30))
def test_streams_say_what_was_said_however_bytes_are_cut(
    dialect: Dialect, answer: Answer, cuts: list[int]
) -> None:
    cut = written(dialect.writer(is_stream=True), answer.events(), cuts)
    assert dialect.texts(cut) == answer.text
    assert not dialect.errors(cut)
    at_once = written(dialect.writer(is_stream=True), answer.events(), [])
    assert VARYING.sub(b"", cut) == VARYING.sub(b"", at_once)


@every_dialect
@given(answer=answers)
def test_whole_answers_say_the_same_whether_or_not_the_backend_streams(dialect: Dialect, answer: Answer) -> None:
    for upstream in (answer.whole(), answer.events(), answer.events(has_done=False)):
        assert (
            dialect.whole_text(json.loads(written(dialect.writer(is_stream=False), upstream, [7]))) == answer.text
        )
    streamed = written(dialect.writer(is_stream=True), answer.whole(), [7])
    assert dialect.texts(streamed) == answer.text


def _broken_streams() -> Iterator[tuple[str, bytes]]:
    begun = event({"choices": [{"index": 0, "delta": {"content": "The "}}]})
    yield "error event", begun + event({"error": {"message": "It broke."}}) + begun
    yield "error without words", begun + event({"error": True})
    yield "early end", begun
    yield "nothing", b""
    yield "garbage", b"data: {<html>\n\ndata: 7\n\ndata: []\n\n"
    yield "wrong types", event({"choices": [{"index": 0, "delta": {"content": 5, "tool_calls": [7, {}]}}, 4]})
    yield "whole garbage", b'{"choices": 5}'
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":%s}}]}}]}\n\n'
    yield "arguments nested too deep", begun + call % deep
    yield "logprobs nested too deep", b'data: {"choices":[{"logprobs":{"content":[%s]}}]}\n\n' % deep
    yield "html", b"<html>502 Bad Gateway</html>"


@every_dialect
@pytest.mark.parametrize(("name", "upstream"), tuple(_broken_streams()))
def test_a_broken_upstream_ends_in_one_error(dialect: Dialect, name: str, upstream: bytes) -> None:
    writer = dialect.writer(is_stream=True)
    out = written(writer, upstream, [40])
    assert len(dialect.errors(out)) == 1
    assert writer.fail(BROKEN) == b""
    whole = json.loads(written(dialect.writer(is_stream=False), upstream, [40]))
    assert whole["error"]


@every_dialect
def test_calls_that_are_mixed_end_a_stream_once(dialect: Dialect) -> None:
    parts = [{"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "1"}} for at in (0, 1)]
    mixed = event({"choices": [{"index": 0, "delta": {"tool_calls": [*parts, parts[0], parts[1]]}}]})
    out = written(dialect.writer(is_stream=True), mixed * 2, [])
    # Ollama's clients get calls whole, at the end; others an error, and nothing after it.
    assert len(dialect.errors(out)) == 1
    last = re.split(rb"\n+", out.rstrip())[-1]
    assert b"error" in last


@every_dialect
def test_answers_without_end_are_cut(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dialects.chat_writer.ANSWER_BYTES_MAX", 1000)
    writer = dialect.writer(is_stream=True)
    out = b"".join(
        writer.feed(event({"choices": [{"index": 0, "delta": {"content": "x" * 90}}]})) for _ in range(99)
    )
    assert len(dialect.errors(out)) == 1
    assert writer.end() == b""


@every_dialect
def test_a_lane_that_breaks_off_is_said_in_the_dialect(dialect: Dialect) -> None:
    writer = dialect.writer(is_stream=True)
    begun = writer.feed(event({"choices": [{"index": 0, "delta": {"content": "The "}}]}))
    assert dialect.errors(begun + writer.fail(BROKEN)) == ["It broke."]
    assert writer.end() == b""


@every_dialect
def test_an_upstreams_refusal_is_said_in_the_dialect(dialect: Dialect) -> None:
    question = dialect.route.read(json.dumps(dialect.question).encode())
    writer = dialect.route.writer_for(question, "req_1", 400)
    assert writer
    assert writer.feed(b'{"error": {"message": "Too hot.", "param": "temperature"}}') == b""
    answer = json.loads(writer.end())
    assert "Too hot." in json.dumps(answer["error"])
    assert writer.content_type == "application/json"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(contents=st.lists(json_values, max_size=4), is_whole=st.booleans())
def test_no_shape_of_json_can_make_a_writer_raise(contents: list[Any], is_whole: bool) -> None:
    parts = [json.dumps(content).encode() for content in contents]
    upstream = b"".join(parts) if is_whole else b"".join(b"data: " + part + b"\n\n" for part in parts)
    for dialect in DIALECTS:
        written(dialect.writer(is_stream=True), upstream, [9])
        written(dialect.writer(is_stream=False), upstream, [9])


@given(upstream=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_no_upstream_can_make_a_writer_raise(upstream: bytes, cuts: list[int]) -> None:
    for route in ROUTES:
        dialect = next((one for one in DIALECTS if one.path == route.path), None)
        if dialect:
            written(dialect.writer(is_stream=True), upstream, cuts)
            written(dialect.writer(is_stream=False), upstream, cuts)
