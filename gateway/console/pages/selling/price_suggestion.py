"""Suggests a price for a model: below the cloud price, above the power cost. Pure; amounts in nano-USD."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from accounting.money import Price
from accounting.rules.market import BPS
from cluster.plans.forecast import Prediction
from gateway.advice.break_even import own_nano_per_mtok
from gateway.advice.question import OwnCost
from gateway.billing.request_log import RequestEntry

CLOUD_PERCENT = 60
"""Percentage of the cheapest cloud price: buyers need a discount to use a third party's machine."""
COST_TIMES = 2
"""Multiple of the power cost after the fee, if no cloud price is known."""
_ANSWER_TIMES = 4
_STEP_NANO = 10**6
_TOKENS_MIN = 8


@dataclass(frozen=True, slots=True)
class SalesPace:
    """Recent speed of a model: tokens per second, and seconds to the first token; medians over `answers`."""

    tokens_per_s: float
    first_token_s: float
    answers: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Prices per million tokens, and the reason; `floor_nano` is the cost of a million mixed tokens plus fee."""

    prompt_nano: int
    completion_nano: int
    why: str
    floor_nano: int | None


def pace_of(rows: Sequence[RequestEntry]) -> SalesPace | None:
    """Return the pace of streamed answers long enough to measure; None if there are none."""
    rates, firsts = [], []
    for row in rows:
        took_ms = row.duration_ms - (row.ttft_ms or row.duration_ms)
        if row.ttft_ms is None or row.completion_tokens < _TOKENS_MIN or took_ms <= 0:
            continue
        rates.append((row.completion_tokens - 1) * 1000 / took_ms)
        firsts.append(row.ttft_ms / 1000)
    return SalesPace(median(rates), median(firsts), len(rates)) if rates else None


def power_nano_per_mtok(cost: OwnCost, machines: int, pace: SalesPace | None) -> int | None:
    """Return the power cost of a million tokens, three prompt tokens per output token; None if unknown."""
    if pace is None or pace.tokens_per_s <= 0:
        return None
    predicted = Prediction(
        token_s=1 / pace.tokens_per_s,
        tokens_per_s=pace.tokens_per_s,
        streams=1,
        in_flight=1,
        first_token_s=pace.first_token_s,
    )
    return own_nano_per_mtok(cost, max(1, machines), predicted)


def share_nano(price_nano: int, fee_bps: int) -> int:
    """Return the seller's share of a price: the marketplace fee is rounded down with each sale."""
    return price_nano - price_nano * fee_bps // BPS


def suggested(cloud: Sequence[Price], power_nano: int | None, fee_bps: int) -> Suggestion | None:
    """Return a price; None if neither a cloud price nor the own cost is known."""
    floor_nano = None if power_nano is None else -(-power_nano * BPS // max(1, BPS - fee_bps))
    if beside := cheapest(cloud):
        prompt, answer = (
            _rounded(nano * CLOUD_PERCENT // 100) for nano in (beside.prompt_nano, beside.completion_nano)
        )
        if floor_nano is None or mix_nano(Price(prompt, prompt, answer)) >= floor_nano:
            return Suggestion(prompt, answer, f"{CLOUD_PERCENT} % of the cheapest cloud price", floor_nano)
        why = "power cost plus fee, which is more than a buyer saves compared with the cloud"
        return _from_mix(floor_nano, why, floor_nano)
    if floor_nano is None:
        return None
    return _from_mix(
        floor_nano * COST_TIMES, f"{COST_TIMES} times power cost plus fee; no cloud price known", floor_nano
    )


def cheapest(cloud: Sequence[Price]) -> Price | None:
    """Return the cheapest price of the mix; free cloud offers are ignored."""
    return min((price for price in cloud if mix_nano(price)), key=mix_nano, default=None)


def mix_nano(price: Price) -> int:
    """Return the price of a million tokens, three prompt tokens per output token."""
    return (3 * price.prompt_nano + price.completion_nano) // 4


def _from_mix(nano: int, why: str, floor_nano: int) -> Suggestion:
    """Price output tokens at four times the prompt price, so that the mix has this price."""
    prompt = _rounded(-(-nano * 4 // (3 + _ANSWER_TIMES)))
    return Suggestion(prompt, prompt * _ANSWER_TIMES, why, floor_nano)


def _rounded(nano: int) -> int:
    """Round up to a tenth of a cent, for readability."""
    return -(-nano // _STEP_NANO) * _STEP_NANO
