"""How long a seller is new: earnings mature later then, and a part of them is kept. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from market.house.terms import DAY_NS, Terms


@dataclass(frozen=True, slots=True)
class Record:
    """What a seller has done here: paid jobs by the buyer's account, and since when."""

    jobs: Mapping[str, int]
    first_sale_ns: int | None = None

    @property
    def buyers(self) -> int:
        return sum(count > 0 for count in self.jobs.values())


@dataclass(frozen=True, slots=True)
class Probation:
    """What is still missing; nothing for whoever is new no more."""

    jobs: int
    buyers: int
    days: int

    @property
    def is_over(self) -> bool:
        return not (self.jobs or self.buyers or self.days)


def probation(record: Record, terms: Terms, now_ns: int) -> Probation:
    """What a seller lacks. Of one buyer at most half of the jobs count: a friend is not enough."""
    most = max(1, terms.probation_jobs // 2)
    jobs = sum(min(count, most) for count in record.jobs.values())
    days = 0 if record.first_sale_ns is None else max(0, now_ns - record.first_sale_ns) // DAY_NS
    return Probation(
        max(0, terms.probation_jobs - jobs),
        max(0, terms.probation_buyers - record.buyers),
        max(0, terms.probation_days - days),
    )


def matures_before_ns(terms: Terms, now_ns: int, *, is_new: bool) -> int:
    """Sales before this moment are old enough: those of whole days (UTC) that ended so many days ago.

    With no days to wait, all sales up to now.
    """
    days = terms.maturity_days_new if is_new else terms.maturity_days
    return now_ns if not days else (now_ns // DAY_NS - days) * DAY_NS
