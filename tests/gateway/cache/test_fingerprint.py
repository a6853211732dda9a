"""Only the same question of the same tenant, in the same privacy class, has the same mark."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cache.fingerprint import fingerprint, is_deterministic
from gateway.dialects.openai import Kind, read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call

ANN = Caller("key-1", "mr-1", "ann", "lab", frozenset({"pool"}))
QUESTION: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "temperature": 0}

texts = st.text(min_size=1, max_size=20)


def call(body: dict[str, Any], kind: Kind = "chat") -> Call:
    raw = msgspec.json.encode(body)
    return Call("id", kind, read_request(kind, raw), raw)


def test_the_order_of_fields_and_who_is_named_as_user_do_not_matter() -> None:
    other = dict(reversed(QUESTION.items())) | {"user": "someone", "metadata": {"a": "b"}}

    assert fingerprint(call(QUESTION), ANN, "public").exact == fingerprint(call(other), ANN, "public").exact


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.1},
        {"max_tokens": 1},
        {"stream": True},
        {"messages": [{"role": "user", "content": "Why"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_whatever_shapes_the_answer_makes_another_mark(change: dict[str, Any]) -> None:
    assert fingerprint(call(QUESTION), ANN, "public") != fingerprint(call(QUESTION | change), ANN, "public")


@pytest.mark.parametrize(
    "other",
    [
        replace(ANN, user_id="bob"),
        replace(ANN, organization_id="elsewhere"),
        replace(ANN, lanes=frozenset({"pool", "cloud"})),
        replace(ANN, regions=frozenset({"eu"})),
    ],
)
def test_nobody_finds_what_others_were_answered(other: Caller) -> None:
    assert fingerprint(call(QUESTION), ANN, "public").exact != fingerprint(call(QUESTION), other, "public").exact


def test_privacy_classes_have_nothing_in_common() -> None:
    marks = {fingerprint(call(QUESTION), ANN, label).exact for label in ("public", "internal", "private")}

    assert len(marks) == 3


@pytest.mark.parametrize("extras", [{"lane": "pool"}, {"continue_on_failure": True}])
def test_who_may_have_answered_is_a_part_of_the_question(extras: dict[str, Any]) -> None:
    """By one lane alone, or by two whose weights are not the same."""
    other = call(QUESTION | {"millrace": extras})

    assert fingerprint(call(QUESTION), ANN, "public").exact != fingerprint(other, ANN, "public").exact


@given(texts, texts, texts, texts)
@example("a", "b\0", "\0a", "b")
@example("1:a", "b", "a", "b1:")
def test_text_cannot_move_between_fields(user: str, organization: str, other_user: str, other: str) -> None:
    one = replace(ANN, user_id=user, organization_id=organization)
    two = replace(ANN, user_id=other_user, organization_id=other)
    is_same = (user, organization) == (other_user, other)

    assert (fingerprint(call(QUESTION), one, "public") == fingerprint(call(QUESTION), two, "public")) is is_same


def test_the_context_is_all_but_the_last_question() -> None:
    other = QUESTION | {"messages": [{"role": "user", "content": "For what reason?"}]}
    longer = QUESTION | {"messages": [{"role": "system", "content": "Rhyme."}, *QUESTION["messages"]]}
    one, two, three = (
        fingerprint(call(body), ANN, "public", with_context=True) for body in (QUESTION, other, longer)
    )

    assert one.context == two.context != three.context
    assert one.exact != two.exact
    assert one.question == "Why?"


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (QUESTION, "chat", True),
        (QUESTION | {"temperature": 0.5}, "chat", False),
        (QUESTION | {"temperature": 0.5, "seed": 7}, "chat", True),
        ({"model": "m", "prompt": "Once"}, "completion", False),
        ({"model": "m", "input": "Once"}, "embedding", True),
    ],
)
def test_which_requests_ask_for_no_chance(body: dict[str, Any], kind: Kind, expected: bool) -> None:
    assert is_deterministic(call(body, kind)) is expected
