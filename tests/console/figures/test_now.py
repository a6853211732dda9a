"""Points of the live charts: each slot's own, and percentiles of the dozen slots that end with it."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.console.figures.now import TOGETHER, first_tokens, throughput
from gateway.telemetry.history import FIRST_TOKEN
from gateway.telemetry.slots import Slot, percentile

BOUNDS = (0.1, 1.0)

slots = st.lists(st.none() | st.tuples(*[st.integers(0, 5)] * 3), max_size=40).map(
    lambda counts: [
        Slot(at, spreads={(FIRST_TOKEN, "pool"): each} if each is not None else {})
        for at, each in enumerate(counts)
    ]
)


@given(slots)
def test_each_point_tells_of_the_slots_just_before_it(given_slots: list[Slot]) -> None:
    rows = first_tokens(given_slots, 5, BOUNDS)
    assert [row[0] for row in rows] == [5 * slot.number for slot in given_slots]
    for at, row in enumerate(rows):
        window = given_slots[max(0, at - TOGETHER + 1) : at + 1]
        counts = [sum(slot.spreads.get((FIRST_TOKEN, "pool"), (0, 0, 0))[i] for slot in window) for i in range(3)]
        expected = [percentile(BOUNDS, counts, share) for share in (0.5, 0.95)]
        assert row[1:] == [None if each is None else round(each * 1000, 1) for each in expected]


def test_throughput_is_per_second_and_in_the_order_of_the_lanes() -> None:
    rows = throughput([Slot(7, tokens={"cloud": 10.0, "pool": 1.0}), Slot(8)], 5, ["pool", "cloud"])
    assert rows == [[35, 0.2, 2.0], [40, 0.0, 0.0]]


def test_what_answers_under_way_may_still_fill_is_no_zero() -> None:
    slots = [Slot(7), Slot(8, tokens={"pool": 5.0}), Slot(9), Slot(10)]
    rows = throughput(slots, 5, ["pool"], is_under_way=True)
    assert [row[1] for row in rows] == [0.0, 1.0, None, None]
    assert [row[1] for row in throughput(slots, 5, ["pool"])] == [0.0, 1.0, 0.0, 0.0]
