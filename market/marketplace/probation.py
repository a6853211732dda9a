"""Decide how long a seller is new: meanwhile earnings mature later, and a part of them is held in reserve.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from market.marketplace.terms import DAY_NS, MarketplaceTerms


@dataclass(frozen=True, slots=True)
class SellerHistory:
    """A seller's history here: paid jobs by the buyer's account, and the time of the first sale."""

    jobs: Mapping[str, int]
    first_sale_ns: int | None = None

    @property
    def buyers(self) -> int:
        return sum(count > 0 for count in self.jobs.values())


@dataclass(frozen=True, slots=True)
class Probation:
    """The requirements still missing to leave the new-seller period; all zero once it is over."""

    jobs: int
    buyers: int
    days: int

    @property
    def is_over(self) -> bool:
        return not (self.jobs or self.buyers or self.days)


def probation(record: SellerHistory, terms: MarketplaceTerms, now_ns: int) -> Probation:
    """Return what a seller lacks. One buyer counts for at most half of the jobs: a partner is not enough."""
    most = max(1, terms.probation_jobs // 2)
    jobs = sum(min(count, most) for count in record.jobs.values())
    days = 0 if record.first_sale_ns is None else max(0, now_ns - record.first_sale_ns) // DAY_NS
    return Probation(
        max(0, terms.probation_jobs - jobs),
        max(0, terms.probation_buyers - record.buyers),
        max(0, terms.probation_days - days),
    )


def matures_before_ns(terms: MarketplaceTerms, now_ns: int, *, is_new: bool) -> int:
    """Return the time before which sales are old enough: whole days (UTC) that ended the required days ago.

    If there is no waiting time, all sales up to now are old enough.
    """
    days = terms.maturity_days_new if is_new else terms.maturity_days
    return now_ns if not days else (now_ns // DAY_NS - days) * DAY_NS
