"""Compute how much of the traffic each candidate should get.

    effective price = cost / success rate
    weight          = quality**2 * headroom / effective price**2

An owner's share is that of its best listing; further listings only divide it. A price below a quarter of the
median counts as that quarter, so a bait price costs its seller more than it gains. New sellers are not weighed;
exploration finds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import median

from market.protocol.matching.candidate import Candidate, Exclusion

BAIT_PARTS = 4


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate with its weight and its share of the traffic. The shares of all that count add up to 1."""

    candidate: Candidate
    weight: float = 0.0
    share: float = 0.0

    @property
    def excluded(self) -> Exclusion | None:
        return self.candidate.exclusion


def weigh(candidates: Sequence[Candidate]) -> list[Weighed]:
    """Weigh all candidates, the largest share first. Excluded ones and new sellers have a share of zero."""
    floor_nano = _floor_nano([candidate for candidate in candidates if _counts(candidate)])
    weighed = [_weighed(candidate, floor_nano) for candidate in candidates]
    return sorted(_shared_out(weighed), key=_rank)


def _floor_nano(candidates: Sequence[Candidate]) -> float:
    """Return the price floor. Each owner counts with one price, so more listings of one owner do not move it."""
    prices: dict[str, float] = {}
    for candidate in candidates:
        price_nano = candidate.effective_nano
        prices[candidate.owner] = min(price_nano, prices.get(candidate.owner, price_nano))
    return max(1.0, median(prices.values()) / BAIT_PARTS) if prices else 1.0


def _counts(candidate: Candidate) -> bool:
    return not candidate.is_probation and candidate.exclusion is None


def _weighed(candidate: Candidate, floor_nano: float) -> Weighed:
    if not _counts(candidate):
        return Weighed(candidate)
    price_nano = max(candidate.effective_nano, floor_nano)
    return Weighed(candidate, candidate.track.quality**2 * candidate.headroom / price_nano**2)


def _shared_out(weighed: Sequence[Weighed]) -> list[Weighed]:
    """Give every owner the share of its best listing, divided among its listings by their weights."""
    owner_of = attrgetter("candidate.owner")
    owners = [list(each) for _, each in groupby(sorted(weighed, key=owner_of), key=owner_of)]
    total = sum(max(each.weight for each in listings) for listings in owners)
    return [_with_share(each, listings, total) for listings in owners for each in listings]


def _with_share(each: Weighed, listings: Sequence[Weighed], total: float) -> Weighed:
    if not each.weight:
        return each
    best = max(other.weight for other in listings)
    part = each.weight / sum(other.weight for other in listings)
    share = best / total * part
    return Weighed(each.candidate, each.weight, share)


def _rank(each: Weighed) -> tuple[float, float, str]:
    return -each.share, each.candidate.effective_nano, each.candidate.listing
