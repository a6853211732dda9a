"""Where requests of a batch may go: rules about idle machines, paid lanes and time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.placement import BatchPace, choose
from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate, Decision, Rejection
from gateway.routing.policy import Objection
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Load
from gateway.settings.batches import BatchesSettings

BOUNDS = BatchesSettings()
EARLY = BatchPace(left_s=80_000, window_s=86_400, items=100, item_s=2, abreast=8)
LATE = replace(EARLY, left_s=8_000)
NOBODY = Decision((), ())
OFFER = Offer("pool", "desk", "m")


def own(beside: int = 0, slots: int | None = None, wait_s: float = 0.0, *, is_resident: bool = True) -> Decision:
    load = Load(100, 0, 0, beside, slots, is_resident, False)
    predicted = Prediction(1.0, wait_s, 0.0, 0.01, 100, 0, 0.0, 0, load)
    return Decision((Candidate(replace(OFFER, slots=slots), predicted),), ())


def kept_out(check: str) -> Decision:
    return Decision((), (Rejection(OFFER, Objection(check, ("x", "y", "z"))),))  # type: ignore[arg-type]


PAID = own()


@pytest.mark.parametrize(
    ("decision", "paid", "pace", "verdict"),
    [
        (own(), None, EARLY, "own"),
        (own(beside=3), None, EARLY, "own"),
        (own(beside=4), None, EARLY, "wait"),
        (own(beside=1, slots=2), None, EARLY, "wait"),
        (own(beside=0, slots=1), None, EARLY, "own"),
        (own(beside=1, slots=1), None, LATE, "wait"),
        (own(wait_s=3), None, EARLY, "wait"),
        (own(is_resident=False), None, EARLY, "own"),
        (own(beside=1, is_resident=False), None, EARLY, "wait"),
        (own(beside=4), PAID, EARLY, "wait"),
        (own(beside=4), PAID, LATE, "paid"),
        (own(), PAID, LATE, "own"),
        (kept_out("down"), PAID, EARLY, "wait"),
        (kept_out("breaker"), PAID, LATE, "paid"),
        (kept_out("features"), PAID, EARLY, "paid"),
        (NOBODY, PAID, EARLY, "paid"),
        (NOBODY, kept_out("down"), LATE, "wait"),
        (kept_out("down"), None, LATE, "wait"),
        (kept_out("features"), None, EARLY, "hopeless"),
        (kept_out("lanes"), kept_out("privacy"), LATE, "hopeless"),
        (NOBODY, None, EARLY, "hopeless"),
    ],
)
def test_where_it_goes(decision: Decision, paid: Decision | None, pace: BatchPace, verdict: str) -> None:
    assert choose(decision, paid, pace, BOUNDS) == verdict


@given(
    left_s=st.floats(0, 86_400),
    items=st.integers(0, 50_000),
    item_s=st.floats(0.01, 600),
    abreast=st.integers(1, 64),
)
def test_what_is_late_stays_late(left_s: float, items: int, item_s: float, abreast: int) -> None:
    """With less time, or with more to do, nothing is less urgent; and at the end everything is."""
    pace = BatchPace(left_s, 86_400, items, item_s, abreast)
    if pace.is_late:
        assert replace(pace, left_s=left_s / 2).is_late
        assert replace(pace, items=items + 1).is_late
    assert replace(pace, left_s=0.0).is_late
