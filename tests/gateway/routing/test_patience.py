"""How long a first byte is waited for: longer for what is predicted to take longer."""

from dataclasses import replace
from typing import Any

from gateway.lanes.base import Offer
from gateway.routing.patience import give_up_after_s
from tests.gateway.routing.offers import EVERYBODY, POOL, Bench, call

FIRST_BYTE_S = 60.0


def bound_s(offer: Offer = POOL, text: str = "Why?", limit: int | None = None, **fields: Any) -> float:
    asked = call(text, max_tokens=limit, **fields)
    (candidate,) = Bench(offer).router.explain(EVERYBODY, asked).candidates
    return give_up_after_s(candidate.predicted, limit, FIRST_BYTE_S)


def test_a_first_byte_is_waited_for_as_its_prediction_says() -> None:
    usual_s = bound_s()
    assert FIRST_BYTE_S < usual_s < 2 * FIRST_BYTE_S
    assert bound_s(text="long " * 50_000) > 2 * usual_s
    assert bound_s(replace(POOL, is_resident=False, load_s=90.0)) > usual_s + 4 * 90
    whole_s = bound_s(stream=False)
    assert whole_s > 4 * usual_s, "it begins with its last word, which may be far off"
    assert bound_s(stream=False, limit=10) < whole_s / 2


def test_a_backend_that_needs_longer_gets_longer_the_next_time() -> None:
    bench = Bench(POOL)
    before = bench.router.explain(EVERYBODY, call())
    dispatch = bench.router.began("pool:desk", before)
    bench.now_s += 100.0
    dispatch.gave_up()
    (candidate,) = bench.router.explain(EVERYBODY, call()).candidates
    was_s = give_up_after_s(before.candidates[0].predicted, None, FIRST_BYTE_S)
    assert give_up_after_s(candidate.predicted, None, FIRST_BYTE_S) > was_s + 60
