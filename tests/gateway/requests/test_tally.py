"""What a stream has brought, as far as it can be told on the way: never more than is allowed, nothing twice."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.counts import estimate_tokens
from gateway.requests.tally import Tally

ALL = 10**9


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def said(text: str, index: int = 0, finish: str | None = None) -> bytes:
    return event(id="x", choices=[{"index": index, "delta": {"content": text}, "finish_reason": finish}])


@given(st.lists(st.text(max_size=40)), st.integers(0, 60))
def test_what_passes_is_within_the_bound_and_counts_as_its_text_does(texts: list[str], tokens_max: int) -> None:
    tally, passed = Tally(), []
    for text in texts:
        if not tally.take(said(text), tokens_max):
            break
        passed.append(text)
    # No less than its characters count as where it is charged, no more than twice that or an event each.
    assert estimate_tokens("".join(passed)) <= tally.tokens
    assert tally.tokens <= max(estimate_tokens("".join(passed * 2)), sum(map(bool, passed)))
    assert tally.tokens <= tokens_max or not any(passed)


def test_what_has_no_text_always_passes_and_choices_end_one_by_one() -> None:
    tally = Tally()
    assert tally.take(said("", index=1, finish="stop"), 0)
    assert tally.take(b": a comment\n\n", 0)
    assert tally.take(b"data: [DONE]\n\n", 0)
    assert tally.take(b"data: no JSON\n\n", 0)
    assert tally.take(event(choices=["no choice", {"index": "no"}], usage="none"), 0)
    assert not tally.take(said("word"), 0)
    assert (tally.tokens, tally.finished) == (0, {1})


def test_calls_of_tools_thoughts_and_the_upstreams_own_word_count() -> None:
    tally = Tally()
    call = {"index": 0, "delta": {"tool_calls": [{"function": {"name": "mill", "arguments": "{'a':1}"}}]}}
    assert tally.take(event(choices=[call]), ALL)
    assert tally.tokens == 5
    assert tally.take(event(choices=[{"index": 0, "delta": {"reasoning_content": "mill" * 4}}]), ALL)
    assert tally.tokens == 9
    assert tally.take(
        event(choices=[{"index": 0, "delta": {"content": "a"}}], usage={"completion_tokens": 50}), ALL
    )
    assert tally.tokens == 50
    assert not tally.take(event(choices=[{"delta": {"content": "a"}}], usage={"completion_tokens": 60}), 59)
    assert tally.tokens == 50


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (list("the mill grinds what the race brings ") * 10, 85),
        (["the", " mill", " grinds", ",", " and", " the", " race", " brings", " it", "."] * 10, 100),
        (["7f" * 50] * 10, 500),
        (["水"] * 100, 90),
    ],
    ids=["letter by letter", "word by word", "hexadecimal", "Chinese"],
)
def test_usual_text_is_told_within_half_of_what_it_is(texts: list[str], tokens: int) -> None:
    tally = Tally()
    assert all(tally.take(said(text), ALL) for text in texts)
    assert tokens / 1.5 <= tally.tokens <= tokens * 1.5


def test_thoughts_under_two_names_count_once() -> None:
    tally = Tally()
    delta = {"reasoning": "mill" * 4, "reasoning_content": "mill" * 4}
    assert tally.take(event(choices=[{"index": 0, "delta": delta}]), ALL)
    assert tally.tokens == 4
