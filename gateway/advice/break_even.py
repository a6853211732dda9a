"""The number of tokens a day from which own machines are cheaper than a provider. Pure; amounts in nano-USD."""

from dataclasses import dataclass
from fractions import Fraction

from accounting.metering.own_cost import CostTerms, second_nano
from accounting.money import TOKENS_PER_PRICE, Price
from cluster.plans.forecast import Prediction
from gateway.advice.question import OwnCost

_DAY_S = 86_400
_YEAR_DAYS = Fraction(36_525, 100)
# Predictions of the first token assume a prompt of this length.
_PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Costs of a million tokens in this mix of prompts and answers, here and at the provider.

    `fixed_nano_per_day` is wear, which is paid regardless of use. `tokens_per_day` is None if own machines are
    never cheaper, and 0 if they are cheaper from the first token. `tokens_per_day_max` is their capacity.
    """

    provider: str
    own_nano_per_mtok: int
    cloud_nano_per_mtok: int
    fixed_nano_per_day: int
    tokens_per_day: int | None
    tokens_per_day_max: int


def own_nano_per_mtok(cost: OwnCost, machines: int, predicted: Prediction) -> int:
    """Return the machines' power cost for a million tokens of the mix, in nano-USD, rounded up."""
    running = CostTerms(cost.terms.electricity_nano, 0, cost.terms.life_years, cost.terms.idle_watts)
    return -(-_seconds_per_mtok(cost, predicted) * machines * second_nano(running, cost.watts) // 1)


def break_even(cost: OwnCost, machines: int, predicted: Prediction, provider: str, price: Price) -> BreakEven:
    """Compare own machines with one provider's price."""
    ratio = cost.prompt_tokens_per_answer_token
    cloud_nano = (ratio * price.prompt_nano + price.completion_nano) // (ratio + 1)
    own_nano = own_nano_per_mtok(cost, machines, predicted)
    life_days = Fraction(cost.terms.life_years) * _YEAR_DAYS
    fixed_nano = -(-machines * cost.terms.machine_nano // life_days)
    most = int(_DAY_S * TOKENS_PER_PRICE / _seconds_per_mtok(cost, predicted))
    return BreakEven(
        provider, own_nano, cloud_nano, fixed_nano, _tokens_per_day(fixed_nano, cloud_nano - own_nano, most), most
    )


def _tokens_per_day(fixed_nano: int, saved_nano_per_mtok: int, most: int) -> int | None:
    if saved_nano_per_mtok <= 0:
        return None
    needed = -(-fixed_nano * TOKENS_PER_PRICE // saved_nano_per_mtok)
    return needed if needed <= most else None


def _seconds_per_mtok(cost: OwnCost, predicted: Prediction) -> Fraction:
    """Return how many seconds the pipeline needs for a million tokens of the mix."""
    ratio = cost.prompt_tokens_per_answer_token
    prompt_s = _exact(predicted.first_token_s) / _PROMPT_TOKENS
    answer_s = 1 / _exact(predicted.tokens_per_s)
    return TOKENS_PER_PRICE * (ratio * prompt_s + answer_s) / (ratio + 1)


def _exact(figure: float) -> Fraction:
    """Return the figure as it would be written down, so that bills do not depend on a float's last bits."""
    return Fraction(figure).limit_denominator(10**9)
