"""What strangers send is read strictly, however it comes: threat 25, fuzzed."""

import base64
import json
import os
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from market.buyer.carrier import EVENT_BYTES_MAX, WAITS_MAX, Carrier, Nonce, Sealed
from market.buyer.chunks import Chunks, Json
from market.buyer.errors import Garbled
from tests.examples import examples

NONCE = os.urandom(32)
FIRST = b"event: nonce\ndata: " + base64.b64encode(NONCE) + b"\n\n"
WAIT = b"event: wait\ndata: -\n\n"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FUNCTION = st.fixed_dictionaries(
    {}, optional={"name": st.sampled_from(["grind", "rm", ""]), "arguments": st.text(max_size=5)}
)
CALL = st.fixed_dictionaries(
    {},
    optional={"index": st.integers(-1, 3), "id": st.text(max_size=4), "function": FUNCTION | JSON, "type": JSON},
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "system"]),
        "content": st.text(max_size=6) | JSON,
        "reasoning_content": st.text(max_size=6),
        "refusal": st.text(max_size=3),
        "tool_calls": st.lists(CALL, max_size=2),
        "audio": JSON,
        "event": st.just("\n\ndata: [DONE]\n\n"),
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(-1, 2),
        "delta": DELTA | JSON,
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "error", None]),
        "logprobs": JSON,
    },
)
CHUNK = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE, max_size=2) | JSON, "usage": JSON, "id": JSON}
)


def piece(data: bytes) -> bytes:
    return b"data: " + base64.b64encode(data) + b"\n\n"


def heard(data: bytes, cuts: list[int]) -> list[Any]:
    """What a carrier makes of bytes that come in these pieces; what it refused is the last."""
    carrier, events = Carrier(), list[Any]()
    marks = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    try:
        for begin, end in pairwise(marks):
            events += carrier.feed(data[begin:end])
    except Garbled:
        events.append(Garbled)
    return events


@given(st.lists(st.binary(max_size=40), max_size=5), st.lists(st.integers(0, 10**6), max_size=6))
def test_however_a_stream_is_cut_it_says_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    data = WAIT + FIRST + b"".join(piece(each) + WAIT for each in pieces)
    assert heard(data, cuts) == [Nonce(NONCE), *map(Sealed, pieces)]


@given(st.binary(max_size=300), st.booleans())
@example(b"data: \n\n", True)
@example(b"\n\n", True)
@example(b": comment\n\n", True)
@example(b"data: AAAA\r\n\r\n", True)
def test_any_other_bytes_are_refused_or_held(data: bytes, has_begun: bool) -> None:
    for event in heard(FIRST + data if has_begun else data, []):
        assert event is Garbled or isinstance(event, Nonce | Sealed)


@pytest.mark.parametrize(
    "data",
    [
        piece(b"too early"),
        FIRST + FIRST,
        b"event: nonce\ndata: AAAA\n\n",
        FIRST + b"id: 1\n" + piece(b"x"),
        FIRST + b"retry: 10\n\n",
        FIRST + b"data: QQ==\ndata: QQ==\n\n",
        FIRST + b"event: done\ndata: QQ==\n\n",
        FIRST + b"data: QQ\n\n",
        FIRST + b"data: " + b"A" * EVENT_BYTES_MAX,
        WAIT * (WAITS_MAX + 1),
    ],
    # The nonce is another one in each process.
    ids=range(10),
)
def test_a_stream_has_one_form(data: bytes) -> None:
    assert heard(data, [])[-1] is Garbled


def reader(choices: int = 2) -> Chunks:
    return Chunks(is_chat=True, choices=choices, tools=("grind",))


KNOWN = {"index", "delta", "logprobs", "finish_reason"}
SAID = {"content", "refusal", "reasoning_content", "tool_calls"}


def check_is_ours(choices: list[Json]) -> None:
    for choice in choices:
        assert choice.keys() == KNOWN
        assert choice["delta"].keys() <= SAID
        assert choice["index"] in (0, 1)
        assert choice["finish_reason"] in ("stop", "length", "tool_calls", "content_filter", "function_call", None)
        for call in choice["delta"].get("tool_calls", ()):
            assert call.keys() <= {"index", "id", "type", "function"}
            assert call["function"].get("name", "grind") == "grind"
        # One event stays one event.
        assert b"\n" not in msgspec.json.encode(choice)


@settings(max_examples=examples(20, 60))
@given(st.lists(CHUNK, max_size=4))
def test_nothing_but_known_fields_gets_through(chunks: list[Any]) -> None:
    reading = reader()
    try:
        for chunk in chunks:
            check_is_ours(reading.read(json.dumps(chunk).encode()))
    except Garbled:
        return


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_chunk_or_refused(content: bytes) -> None:
    try:
        check_is_ours(reader().read(content))
    except Garbled:
        return


def said(delta: Json, finish: str | None = None, index: int = 0) -> bytes:
    return json.dumps({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}).encode()


def called(name: str, arguments: str = "") -> Json:
    return {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    "chunks",
    [
        [said(called("rm"))],
        [said(called("grind")), said(called("rm"))],
        [said({}, "tool_calls")],
        [said({}, "stop"), said({"content": "more"})],
        [said({}, "stop"), said({}, "stop")],
        [said({}, "made_up")],
        [said({"content": "x"}, index=2)],
        [said({"role": "system", "content": "x"})],
    ],
)
def test_an_answer_says_only_what_was_asked(chunks: list[bytes]) -> None:
    reading = reader()
    *before, last = chunks
    for chunk in before:
        reading.read(chunk)
    with pytest.raises(Garbled):
        reading.read(last)


def test_a_call_comes_through_in_pieces() -> None:
    reading = reader(choices=1)
    first = reading.read(said(called("grind", '{"a"')))
    second = reading.read(said({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}))
    (end,) = reading.read(said({}, "tool_calls"))
    call, more = first[0]["delta"]["tool_calls"][0], second[0]["delta"]["tool_calls"][0]
    assert call == {"index": 0, "id": "c1", "type": "function", "function": {"name": "grind", "arguments": '{"a"'}}
    assert more == {"index": 0, "function": {"arguments": ":1}"}}
    assert end["finish_reason"] == "tool_calls"
    assert reading.has_finished
