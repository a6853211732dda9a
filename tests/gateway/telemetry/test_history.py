"""The metrics over time: nothing is lost or made up between samples, and what is over an hour old is coarser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.billing.finished_request import Ending
from gateway.billing.settlement_worker import Booked
from gateway.metrics.metrics import Metrics
from gateway.telemetry.history import STEP_S, History
from gateway.telemetry.slots import percentile, spread_over, summed
from tests.gateway.telemetry.test_witnesses import booked

START_S = 1_790_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


def ended(lane: str, began_s: float, first_s: float, lasted_s: float, tokens: int, **changes: bool) -> Booked:
    ended, event_seq = booked(Ending(200, "complete"))
    usage = structs.replace(
        ended.settlement.usage,
        lane=lane,
        started_ns=int(began_s * 1e9),
        ttft_ms=int(first_s * 1000),
        duration_ms=int(lasted_s * 1000),
        completion_tokens=tokens,
        compute_nano=2 * 10**9,
    )
    return Booked(
        structs.replace(ended, settlement=structs.replace(ended.settlement, usage=usage), **changes), event_seq
    )


def test_tokens_are_counted_when_they_were_made_and_not_when_the_answer_ended() -> None:
    clock = Clock()
    history = History(Metrics(), lambda: (0, 0), clock)
    clock.now_s += 60
    # Ten seconds of prompt, then thirty of answer.
    history.witness([ended("cluster", START_S, 10, 40, 300), ended("cache", START_S, 0, 1, 99)])
    history.witness([ended("pool", START_S, 1, 10, 100, is_stream=False)])
    history.sample()
    slots = {slot.number * STEP_S - START_S: slot.tokens for slot in history.last(60)}
    assert slots[5] == {"pool": pytest.approx(50)}
    assert slots[10] == {"cluster": pytest.approx(50)}
    assert [slots[at].get("cluster", 0) for at in (0, 5, 35, 40)] == [0, 0, pytest.approx(50), 0]
    assert history.recent(60).tokens_per_s == {"cluster": pytest.approx(5), "pool": pytest.approx(100 / 60)}
    total = summed(history.last(86_400))
    assert total.tokens == {"cluster": pytest.approx(300), "pool": pytest.approx(100)}
    assert total.busy_s == {"cluster": pytest.approx(2), "pool": pytest.approx(2)}
    assert history.recent(60).busy["pool"] == pytest.approx(2 / 60)


def test_each_sample_has_what_came_since_the_one_before() -> None:
    clock, metrics, load = Clock(), Metrics(), [3, 2]
    history = History(metrics, lambda: (load[0], load[1]), clock)
    metrics.requests.labels("pool", "complete").inc(5)
    for _ in range(4):
        metrics.first_token_seconds.labels("pool").observe(0.3)
    clock.now_s += 5
    history.sample()
    metrics.requests.labels("pool", "failed").inc(2)
    metrics.foretold("pool", "token", 2.0, 1.0)
    load[:] = [0, 9]
    clock.now_s += 5
    history.sample()
    first, second = history.last(10)
    assert (first.requests, first.failed, first.waiting, first.in_flight) == ({"pool": 5}, 0, 3, 2)
    assert (second.requests, second.failed, second.waiting, second.in_flight) == ({"pool": 2}, 2, 0, 9)
    assert history.pace(first).first_token_s == pytest.approx(0.375)  # the middle of its bucket
    pace = history.pace(second)
    assert (pace.first_token_s, pace.token_s) == (None, None)
    assert pace.token_ratio == pytest.approx(1.75)
    recent = history.recent(60)
    assert (recent.seconds, recent.failed) == (10, 2)
    assert recent.requests_per_s == pytest.approx(0.7)


def test_an_hour_is_kept_finely_and_a_day_by_minutes_and_no_more() -> None:
    clock, metrics = Clock(), Metrics()
    history = History(metrics, lambda: (0, 0), clock)
    for _ in range(26 * 60):
        metrics.requests.labels("pool", "complete").inc()
        clock.now_s += 60
        history.sample()
    assert len(history.last(3600)) == 719  # the one of now is not over
    assert sum(sum(slot.requests.values()) for slot in history.last(3600)) == 60
    day = history.last(86_400)
    assert [sum(slot.requests.values()) for slot in day] == [1] * len(day)
    # A clock that was set back finds what it left there, and nothing that is still to come.
    clock.now_s -= 7200
    history.sample()
    assert summed(history.last(60)).requests == {}
    assert summed(history.last(86_400)).requests == {"pool": 1439 - 120}


@given(st.floats(0, 1e6), st.floats(0, 5000), st.integers(1, 60))
def test_a_time_spread_over_slots_is_all_of_it(begin_s: float, lasts_s: float, step_s: int) -> None:
    parts = list(spread_over(begin_s, begin_s + lasts_s, step_s))
    assert sum(share for _, share in parts) == pytest.approx(1)
    assert all(share > 0 for _, share in parts)
    numbers = [number for number, _ in parts]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] - numbers[0] <= lasts_s // step_s + 1


@given(st.lists(st.integers(0, 50), min_size=5, max_size=5), st.floats(0.01, 1), st.floats(0.01, 1))
def test_percentiles_are_in_order_and_in_the_bucket_that_has_them(
    counts: list[int], low: float, high: float
) -> None:
    bounds = (0.1, 0.5, 1.0, 5.0)
    low, high = sorted((low, high))
    found = [percentile(bounds, counts, share) for share in (low, high)]
    if not sum(counts):
        assert found == [None, None]
        return
    first, second = found
    assert first is not None
    assert second is not None
    assert 0 <= first <= second <= bounds[-1]
    wanted = low * sum(counts)
    at = next(index for index in range(5) if sum(counts[: index + 1]) >= wanted)
    assert (bounds[at - 1] if at else 0) <= first <= bounds[min(at, 3)]
