"""Where a model should run: the widest weights on the fewest own machines that have room, and honest numbers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.metering.own_cost import CostTerms
from accounting.money import NANO_PER_USD, Price
from cluster.errors import ModelDoesNotFit
from cluster.plans.forecast import Prediction
from cluster.plans.plan import plan_stages
from gateway.advice.advice import advise
from gateway.advice.break_even import break_even, own_nano_per_mtok
from gateway.advice.facts import advice_facts
from gateway.advice.question import AdviceQuestion, CloudPrice, OwnCost, PoolCopy, is_same_model
from tests.cluster.test_plan import QUICK, card, member, paced

ELECTRICITY = OwnCost(CostTerms(NANO_PER_USD // 2, 0, 4.0), 100.0)


def question(*gib: float, layers: int = 32, **more: object) -> AdviceQuestion:
    members = tuple(member(number, size, pace=paced(QUICK)) for number, size in enumerate(gib))
    asked = AdviceQuestion("acme/model", card(layers), members, ELECTRICITY)
    return replace(asked, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gib", "best", "precision"),
    [
        ((64.0,), "one machine", "fp32"),
        # Nothing is split that need not be, whatever else stands about.
        ((64.0, 64.0), "one machine", "fp32"),
        ((9.5,), "quantize", "int8"),
        # The widest weights that fit anywhere: several machines come before narrower ones on one.
        ((20.0, 20.0), "cluster", "fp32"),
        ((2.0,), None, None),
    ],
)
def test_own_machines_by_what_they_have_room_for(
    gib: tuple[float, ...], best: str | None, precision: str | None
) -> None:
    found = advise(question(*gib))
    assert (found.best.kind if found.best else None) == best
    assert (found.best.precision if found.best else None) == precision


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.5, 48), min_size=1, max_size=4), st.integers(1, 40))
def test_advice_is_what_the_planner_would_do(gib: list[float], layers: int) -> None:
    asked = question(*gib, layers=layers)
    assert asked.card
    found = advise(asked)
    try:
        plan = plan_stages(asked.name, asked.card, asked.members, context_tokens=asked.card.context_tokens)
    except ModelDoesNotFit:
        assert found.best is None
    else:
        assert found.best
        assert found.best.plan
        assert (found.best.plan.layer_placement, found.best.precision) == (plan.layer_placement, plan.precision)
    for way in found.ways:
        if way.plan:
            assert set(way.machines) == {stage.member.name for stage in way.plan.stages}
            assert (way.needed_bytes or 0) > 0 < (way.tokens_per_s or 0)
            assert (len(way.machines) > 1) == (way.kind == "cluster")
        elif way.kind in ("one machine", "quantize", "cluster"):
            assert not way.is_open
            assert way.why
    assert advice_facts(found)["model"] == "acme/model"


def test_what_nobody_can_serve_says_how_much_is_missing_and_what_would_help() -> None:
    found = advise(question(2.0, 2.0))
    assert found.best is None
    assert "GiB" in found.because[0]
    assert "millrace pool add" in found.because[0]
    assert all("short" in way.why for way in found.ways[:3])


def test_a_copy_that_is_loaded_comes_first_and_a_cold_one_after_the_cluster() -> None:
    warm = PoolCopy("desk", "model:latest", is_resident=True, is_ready=True, quantization="Q4_K_M")
    assert (found := advise(question(64.0, pool=(warm,))).best)
    assert (found.kind, "desk has it loaded" in found.why) == ("pool", True)
    # The one that the cluster serves already is not moved.
    assert (found := advise(question(64.0, pool=(warm,), serving="acme/model")).best)
    assert found.kind == "one machine"
    cold = replace(warm, is_resident=False, load_s=7.0)
    assert (found := advise(question(64.0, pool=(cold,))).best)
    assert found.kind == "one machine"
    assert (found := advise(question(2.0, pool=(cold,))).best)
    assert (found.kind, "about 7 s" in found.why) == ("pool", True)
    away = replace(warm, is_ready=False, note="does not answer")
    closed = advise(question(2.0, pool=(away,)))
    assert closed.best is None
    assert "desk lists it but does not answer" in closed.ways[3].why


def test_a_provider_is_the_last_resort_and_the_measure_of_costs() -> None:
    cheap = CloudPrice("cheap", Price(100_000_000, 0, 400_000_000))
    dear = CloudPrice("dear", Price(900_000_000, 0, 900_000_000))
    assert (found := advise(question(2.0, cloud=(dear, cheap)))).best
    assert (found.best.kind, found.best.nano_per_mtok, found.break_even) == ("cloud", 175_000_000, None)
    both = advise(question(64.0, cloud=(dear, cheap)))
    assert both.best
    assert both.best.kind == "one machine"
    assert both.break_even
    assert both.break_even.provider == "cheap"


def test_a_model_whose_shape_nobody_knows_can_still_be_the_pools() -> None:
    copy = PoolCopy("desk", "odd", is_resident=True, is_ready=True)
    found = advise(replace(question(64.0, pool=(copy,)), card=None))
    assert found.best
    assert found.best.kind == "pool"
    assert all("name a folder" in way.why for way in found.ways[:3])


PREDICTED = Prediction(token_s=0.1, tokens_per_s=10.0, streams=8, in_flight=1, first_token_s=5.12)


def test_the_break_even_is_where_both_bills_are_equal() -> None:
    # A token of a prompt takes 10 ms and one of an answer 100 ms: a million in the mix 3:1 take 32,500 s, at 100 W
    # and half a dollar a kilowatt-hour 13,889 nano-USD a second.
    assert own_nano_per_mtok(ELECTRICITY, 1, PREDICTED) == 32_500 * 13_889
    bought = OwnCost(CostTerms(NANO_PER_USD // 2, 1461 * NANO_PER_USD, 4.0), 100.0)
    price = Price(2 * NANO_PER_USD, 0, 2 * NANO_PER_USD)
    even = break_even(bought, 1, PREDICTED, "p", price)
    assert even.fixed_nano_per_day == NANO_PER_USD  # 1461 days are four years.
    saved_nano = even.cloud_nano_per_mtok - even.own_nano_per_mtok
    assert even.tokens_per_day is not None
    assert abs(even.tokens_per_day * saved_nano / 1e6 - NANO_PER_USD) < 10_000
    assert even.tokens_per_day < even.tokens_per_day_max == int(86_400e6 / 32_500)
    # Paid for already, each token that is not bought is gain; a cheaper provider is never caught up with.
    assert break_even(ELECTRICITY, 1, PREDICTED, "p", price).tokens_per_day == 0
    assert break_even(ELECTRICITY, 1, PREDICTED, "p", Price(1, 1, 1)).tokens_per_day is None
    # Nor one that would take more tokens than the machine manages.
    assert break_even(bought, 1, PREDICTED, "p", Price(0, 0, 4 * 460_000_000)).tokens_per_day is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen/Qwen3-8B", "qwen3:8b", True),
        ("acme/m", "m:latest", True),
        ("Qwen/Qwen3-8B", "qwen3:14b", False),
        ("acme/!", "acme/?", False),
    ],
)
def test_names_that_look_like_one_models(one: str, other: str, same: bool) -> None:
    assert is_same_model(one, other) is same
