"""Compute what own machines cost their owner per second of work: electricity and wear.

Pure; amounts in nano-USD.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from accounting.metering.prices import PricedModel
from accounting.money import Nano, Price, checked_nano

CLUSTER_LANE = "cluster"
POOL_LANE = "pool"
ANY_MACHINE = "*"
"""The name of a lane's rate for every machine without a rate of its own."""
NANO_PER_UNIT = 10**9
"""Usage rows count compute in billionths of a unit; a unit is a second of one machine."""
MAX_RATE_NANO = 10**9
"""A dollar per second. A higher rate is a mistake."""

_JOULES_PER_KWH = 3_600_000
_SECONDS_PER_YEAR = Fraction(31_557_600)


@dataclass(frozen=True, slots=True)
class CostTerms:
    """A machine's costs: `electricity_nano` per kilowatt-hour, and `machine_nano` in all, over `life_years`.

    The machine draws `idle_watts` whether or not it works, so they do not count as the cost of work.
    """

    electricity_nano: int
    machine_nano: int
    life_years: float
    idle_watts: float = 0.0


def second_nano(terms: CostTerms, watts: float) -> Nano:
    """Return the cost of a second of work on a machine that draws `watts` meanwhile, rounded up.

    Raises:
        AmountInvalid: the cost exceeds `MAX_RATE_NANO`, or is negative.
    """
    drawn = max(Fraction(0), Fraction(watts) - Fraction(terms.idle_watts))
    electricity = drawn * terms.electricity_nano / _JOULES_PER_KWH
    wear = Fraction(terms.machine_nano) / (Fraction(terms.life_years) * _SECONDS_PER_YEAR)
    return checked_nano(min(MAX_RATE_NANO, -(-(electricity + wear) // 1)))


def work_nano(compute_nano: int, rate_nano: int) -> int:
    """Return the cost of this amount of compute at a rate per unit, rounded up."""
    return -(-compute_nano * rate_nano // NANO_PER_UNIT)


def rates(
    terms: CostTerms, watts: float, watts_by_machine: Mapping[str, float], *, source: str
) -> dict[tuple[str, str], PricedModel]:
    """Return the rate of every lane of own machines, by lane and machine.

    `watts` is that of the gateway's own machine. The cluster does not report work per machine, so its rate is the
    mean over this machine and all named ones.
    """
    all_watts = [watts, *watts_by_machine.values()]
    by_machine = {(CLUSTER_LANE, ANY_MACHINE): sum(all_watts) / len(all_watts), (POOL_LANE, ANY_MACHINE): watts}
    by_machine |= {(POOL_LANE, name): each for name, each in watts_by_machine.items()}
    return {
        (lane, name): PricedModel(lane, name, source, Price(0, 0, 0), compute_nano=second_nano(terms, each))
        for (lane, name), each in by_machine.items()
    }
