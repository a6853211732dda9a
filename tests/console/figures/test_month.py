"""Days, models and the whole of a month come to the same sums, whatever was used."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.usage import UsageTotal
from accounting.money import Price
from gateway.billing.usage_report import DAY_NS
from gateway.console.figures.month import charged, month
from gateway.console.figures.now import ChartRow
from gateway.console.figures.usage import Row

DAYS = 30
NOW_NS = 20_000 * DAY_NS + 5
NAMES = ("2024-09-05", "2024-10-04")  # the first of them, and today
PRICES = {"a": [Price(10**9, 10**9, 2 * 10**9)]}

counts = st.integers(0, 10**6)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    name, lane = draw(st.sampled_from(NAMES)), draw(st.sampled_from(("cluster", "pool", "cloud", "cache", "none")))
    prompt, completion, money, own = draw(counts), draw(counts), draw(counts), draw(counts)
    used = UsageTotal((), draw(st.integers(1, 99)), prompt, 0, completion, money, money // 2, 0, own_cost_nano=own)
    return Row(name, lane, draw(st.sampled_from("ab")), used)


def drawn(chart: Sequence[ChartRow]) -> float:
    return sum(value or 0 for row in chart for value in row[1:])


@given(st.lists(rows(), max_size=12))
def test_every_way_to_add_it_up_comes_to_the_same(given_rows: Sequence[Row]) -> None:
    found = month(given_rows, PRICES, NOW_NS, DAYS)
    total = found.total
    assert sum(spent.tokens for spent in found.by_model) == total.tokens
    assert (
        sum(spent.requests for spent in found.by_model)
        == total.requests
        == sum(r.used.requests for r in given_rows)
    )
    assert sum(spent.charged_nano for spent in found.by_model) == total.charged_nano == charged(given_rows, "2024")
    assert sum(spent.saved.saved_nano for spent in found.by_model) == total.saved.saved_nano
    assert len(found.tokens) == len(found.money) == DAYS
    assert [row[0] for row in found.tokens] == [20_000 * 86_400 + 86_400 * (day - DAYS + 1) for day in range(DAYS)]
    assert drawn(found.money) == total.paid_nano + total.own_nano
    nobodys = sum(r.used.prompt_tokens + r.used.completion_tokens for r in given_rows if r.lane == "none")
    assert drawn(found.tokens) + nobodys == drawn(found.model_tokens) == total.tokens


def test_the_busiest_models_are_drawn_and_the_others_together() -> None:
    rows = [Row(NAMES[1], "pool", f"m{n}", UsageTotal((), 1, n, 0, 1, 0, 0, 0)) for n in range(1, 9)]
    found = month(rows, {}, NOW_NS, DAYS)
    assert found.models == ("m8", "m7", "m6", "m5", "m4", "others")
    assert found.model_tokens[-1][1:] == [9, 8, 7, 6, 5, 9]


def test_what_was_charged_is_of_the_days_asked_for() -> None:
    old, new = (
        Row(day, "cloud", "m", UsageTotal((), 1, 1, 0, 1, nano, 0, 0))
        for day, nano in zip(NAMES, (5, 7), strict=True)
    )
    assert (charged([old, new], NAMES[1]), charged([old, new], NAMES[0])) == (7, 12)
