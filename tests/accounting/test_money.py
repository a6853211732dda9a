"""Amounts and prices: what is read comes back the same, what is not plainly an amount is refused."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from accounting.errors import AmountInvalid
from accounting.money import MAX_EVENT_NANO, Price, UsdAmount, charge, format_usd, nano_per_million, parse_usd
from accounting.spending.holds import size

AMOUNTS = st.integers(0, MAX_EVENT_NANO)
PRICES = st.builds(Price, *[st.integers(0, 10**11)] * 3)
TOKENS = st.integers(0, 10**6)


@given(st.integers(-MAX_EVENT_NANO, MAX_EVENT_NANO))
def test_what_is_written_reads_the_same(amount_nano: int) -> None:
    text = format_usd(amount_nano)
    assert parse_usd(text, allow_negative=True) == amount_nano
    assert Decimal(text) * 10**9 == amount_nano
    assert len(text.partition(".")[2]) >= 2


@pytest.mark.parametrize(
    ("text", "amount_nano"),
    [("5.00", 5 * 10**9), ("5", 5 * 10**9), ("0.00000246", 2460), ("1000000", MAX_EVENT_NANO), ("0", 0)],
)
def test_plain_decimal_strings_are_amounts(text: str, amount_nano: int) -> None:
    assert parse_usd(text) == amount_nano


NO_AMOUNTS: list[Any] = [
    *(5, 5.0, True, None, Decimal(5), float("nan"), b"5", ["5"]),
    *("", " 5", "5 ", "+5", "-5", "-0.01", "5.", ".5", "05", "1e3", "1_000", "1,000", "0x5", "5\n", "$5"),
    *("NaN", "Infinity", "0.0000000001", "1000000.000000001", "9" * 30, "٥", "５", "5.٠", "²"),
]


@pytest.mark.parametrize("value", NO_AMOUNTS, ids=repr)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(AmountInvalid):
        parse_usd(value)


class Payment(BaseModel):
    amount: UsdAmount


def test_at_the_edge_an_amount_is_a_decimal_string() -> None:
    payment = Payment.model_validate_json('{"amount": "0.1"}')
    assert payment.amount == 10**8
    assert payment.model_dump_json() == '{"amount":"0.10"}'
    for body in ('{"amount": 5}', '{"amount": 5.0}', '{"amount": "-5"}', '{"amount": "NaN"}'):
        with pytest.raises(ValidationError):
            Payment.model_validate_json(body)


@given(PRICES, TOKENS, TOKENS, TOKENS)
def test_a_charge_is_the_exact_price_rounded_up_once(
    price: Price, fresh: int, cached: int, completion: int
) -> None:
    exact = Fraction(
        fresh * price.prompt_nano + cached * price.cached_nano + completion * price.completion_nano, 10**6
    )
    assert exact <= charge(price, fresh + cached, cached, completion) < exact + 1


@given(PRICES, TOKENS, st.floats(0, 1), st.integers(1, 4), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_a_hold_covers_every_charge_within_its_bounds(
    price: Price, prompt_max: int, cached_part: float, completion_max: int, choices: list[float]
) -> None:
    held = size(price, prompt_max, completion_max, len(choices))
    cached = int(prompt_max * cached_part)
    completion = sum(int(completion_max * part) for part in choices)
    assert charge(price, prompt_max, cached, completion) <= held


@pytest.mark.parametrize("counts", [(-1, 0, 0), (1, 2, 0), (0, 0, -1), (10**9 + 1, 0, 0)])
def test_impossible_counts_have_no_charge(counts: tuple[int, int, int]) -> None:
    with pytest.raises(AmountInvalid):
        charge(Price(1, 1, 1), *counts)


@pytest.mark.parametrize(
    ("usd_per_token", "nano"),
    [("1.5e-07", 150_000_000), ("0.00000002", 20_000_000), (Decimal("3E-6"), 3 * 10**9), ("1e-16", 1), (0, 0)],
)
def test_provider_prices_become_nano_per_million(usd_per_token: object, nano: int) -> None:
    assert nano_per_million(usd_per_token) == nano


@pytest.mark.parametrize(
    "value", [1.5e-7, None, "", "-1e-7", "NaN", "Infinity", "١", "1_0", "2", "0." + "1" * 26, True]
)
def test_what_is_no_price_is_refused(value: Any) -> None:
    with pytest.raises(AmountInvalid):
        nano_per_million(value)
