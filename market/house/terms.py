"""What the house asks and gives, the same for everybody."""

from dataclasses import dataclass

from market.channels.terms import ANSWER_S_MAX

DAY_NS = 86_400 * 10**9
ANSWER_MS = 2 * ANSWER_S_MAX * 1000
"""So long a buyer has to answer a seller's receipt that the house has seen; then it is due as it stands.

A seller may hand in the first one at its answer's beginning: the buyer signs at the end, and has to get here then.
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """`fee_bps` and `reserve_bps` are hundredths of a percent of what is sold.

    A seller is on probation for `probation_days` and `probation_jobs` paid jobs of at least `probation_buyers`
    buyers. Earnings mature after `maturity_days_new` until then, after `maturity_days` from then on.
    """

    fee_bps: int = 500
    allocation_hours_max: int = 72
    probation_days: int = 7
    probation_jobs: int = 20
    probation_buyers: int = 3
    maturity_days_new: int = 7
    maturity_days: int = 2
    reserve_bps: int = 1000
