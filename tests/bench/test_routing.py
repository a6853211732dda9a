"""The simulator's servers take the time that they should, and the formula is worth having."""

import pytest

from bench.routing import BOX, FLEETS, POLICIES, measure, simulate
from bench.routing_policies import LeastBusy
from bench.simulator import BLOCK_TOKENS, Query


def test_a_server_takes_the_time_that_its_figures_say() -> None:
    blocks = tuple(range(100))
    first, again = Query(0.0, blocks, 11), Query(100.0, (*blocks, 101), 11)
    rides = simulate([BOX], [first, again], LeastBusy)
    step_s = BOX.step_s + BOX.step_each_s
    prefill_s = 100 * BLOCK_TOKENS / BOX.prefill_tokens_per_s
    assert rides[0].first_s == pytest.approx(prefill_s + BOX.delay_s)
    assert rides[0].ended_s == pytest.approx(prefill_s + 10 * step_s + BOX.delay_s)
    assert rides[1].cached_tokens == 100 * BLOCK_TOKENS
    assert rides[1].first_s - 100 == pytest.approx(BLOCK_TOKENS / BOX.prefill_tokens_per_s + BOX.delay_s)


def test_the_formula_is_ahead_on_a_mixed_fleet() -> None:
    fleet = FLEETS[1]
    formula, *others = (
        measure(fleet, POLICIES[policy], is_bursty=True, lasts_s=90.0, seeds=(1,))
        for policy in ("formula", "round robin", "least busy", "cache aware")
    )
    for other in others:
        assert formula.first_mean_s < other.first_mean_s
        assert formula.goodput_per_s >= other.goodput_per_s
