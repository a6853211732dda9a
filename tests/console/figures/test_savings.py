"""What own machines save is reckoned to the nano, is never overstated, and is nothing where no price is known."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.usage import UsageTotal
from accounting.money import Price, charge
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.console.figures.savings import Work, local_share, saving, worth_nano
from gateway.lanes.base import Lane
from gateway.settings import LaneName
from tests.gateway.routing.offers import CLOUD, PRICE, FixedLane

prices = st.builds(Price, *[st.integers(0, 10**11)] * 3, st.none() | st.integers(0, 10**11))


@st.composite
def works(draw: st.DrawFn, most: int = 10**6) -> Work:
    prompt, completion = draw(st.integers(0, most)), draw(st.integers(0, most))
    used = UsageTotal(
        (),
        1,
        prompt,
        draw(st.integers(0, prompt)),
        completion,
        0,
        0,
        0,
        draw(st.integers(0, completion)),
        own_cost_nano=draw(st.integers(0, 10**9)),
    )
    return draw(st.sampled_from("abc")), used


def tokens_of(used: UsageTotal) -> int:
    return used.prompt_tokens + used.completion_tokens


@given(st.lists(works()), st.dictionaries(st.sampled_from("ab"), st.lists(prices, max_size=3)))
def test_what_is_saved_is_what_the_cheapest_would_cost_less_what_it_did_cost(
    work: list[Work], known: dict[str, list[Price]]
) -> None:
    found = saving(work, known)
    priced = [(model, used) for model, used in work if known.get(model)]
    assert found.own_nano == sum(used.own_cost_nano for _, used in priced)
    assert found.saved_nano + found.own_nano == found.cloud_nano
    for choice in range(3):
        # No choice of prices is cheaper than the one it was reckoned with.
        assert found.cloud_nano <= sum(
            worth_nano(used, known[model][choice % len(known[model])]) for model, used in priced
        )
    assert found.priced_tokens + found.unpriced_tokens == sum(tokens_of(used) for _, used in work)
    assert set(found.unpriced) == {model for model, used in work if tokens_of(used)} - {
        model for model, _ in priced
    }


@given(works(), prices)
def test_a_requests_worth_is_what_it_would_be_charged_but_for_the_rounding(work: Work, price: Price) -> None:
    _, used = work
    charged = charge(price, used.prompt_tokens, used.cached_tokens, used.completion_tokens, used.reasoning_tokens)
    assert charged - 1 <= worth_nano(used, price) <= charged


def test_nothing_is_said_where_nobody_named_a_price() -> None:
    found = saving([("a", UsageTotal((), 1, 10, 0, 5, 0, 0, 0, own_cost_nano=999))], {"a": []})
    assert (found.is_known, found.saved_nano, found.unpriced) == (False, 0, ("a",))


@given(
    st.dictionaries(st.sampled_from(["cluster", "pool", "cloud", "market", "cache", "none"]), st.integers(0, 99))
)
def test_the_local_share_is_of_what_was_computed(tokens: dict[str, int]) -> None:
    def sum_of(*lanes: str) -> int:
        return sum(tokens.get(lane, 0) for lane in lanes)

    own, computed = sum_of("cluster", "pool"), sum_of("cluster", "pool", "cloud", "market")
    assert local_share(tokens) == (float(Fraction(own, computed)) if computed else None)


def test_prices_are_those_of_the_same_name_and_of_the_one_it_is_compared_with() -> None:
    lanes: dict[LaneName, Lane] = {"cloud": FixedLane("cloud", CLOUD)}
    compared: dict[str, Any] = {
        "own": "m",
        "listed": "openai/gpt-4o-mini",
        "m": "no such model",
        "lost": "neither",
    }
    found = CloudEquals(lanes, compared).prices(["m", "own", "listed", "lost", "other"])
    assert (found["m"], found["own"], found["lost"], found["other"]) == ([PRICE.price], [PRICE.price], [], [])
    (listed,) = found["listed"]
    assert listed.prompt_nano > 0
    assert CloudEquals({}, {}).prices(["m"]) == {"m": []}
