"""Define the marketplace's terms, the same for everyone."""

from dataclasses import dataclass

from market.protocol.channels.terms import ANSWER_S_MAX

DAY_NS = 86_400 * 10**9
ANSWER_MS = 2 * ANSWER_S_MAX * 1000
"""Time in which a buyer may answer a receipt that the marketplace has seen, in ms. Then its amount is due.

A seller may submit its first receipt as its answer begins. The buyer signs at the end, and then has to reach the
marketplace.
"""


@dataclass(frozen=True, slots=True)
class MarketplaceTerms:
    """The terms. `fee_bps` and `reserve_bps` are hundredths of a percent of what is sold.

    A seller is on probation for `probation_days` and `probation_jobs` paid jobs of at least `probation_buyers`
    buyers. Until then earnings mature after `maturity_days_new`, and from then on after `maturity_days`.
    """

    fee_bps: int = 500
    allocation_hours_max: int = 72
    probation_days: int = 7
    probation_jobs: int = 20
    probation_buyers: int = 3
    maturity_days_new: int = 7
    maturity_days: int = 2
    reserve_bps: int = 1000
