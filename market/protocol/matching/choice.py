"""Choose a seller: the less busy of two weighted draws, and now and then a random one, to learn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from market.protocol.matching.candidate import Candidate, Need
from market.protocol.matching.weights import Weighed, weigh

EXPLORED = 0.01
"""The share of requests that go to a random owner, new sellers included."""
PREFIX_EPSILON = 0.05
"""A cached prefix decides only if it saves more than this part of the price."""

Chance = Callable[[], float]
"""Returns the next random number from 0 up to 1. Passed in, so that a choice can be repeated."""
Reason = Literal["drawn", "prefix", "explored", "only_newcomers"]


@dataclass(frozen=True, slots=True)
class MatchChoice:
    """The chosen candidate and the reason, with everything that was weighed."""

    candidate: Candidate
    reason: Reason
    weighed: tuple[Weighed, ...]


def choose(candidates: Sequence[Candidate], need: Need, chance: Chance) -> MatchChoice | None:
    """Choose a candidate, or return None if none may serve.

    After a failure, choose again without the candidates that failed.
    """
    weighed = tuple(weigh(candidates, need))
    able = [each.candidate for each in weighed if each.excluded is None]
    if not able:
        return None
    if chance() < EXPLORED:
        return MatchChoice(_anybody(able, chance), "explored", weighed)
    if not any(each.share for each in weighed):
        return MatchChoice(_anybody(able, chance), "only_newcomers", weighed)
    drawn = _less_busy(_draw(weighed, chance), _draw(weighed, chance))
    holder = _holder(weighed, need)
    if holder and _saves(holder, drawn, need):
        return MatchChoice(holder, "prefix", weighed)
    return MatchChoice(drawn, "drawn", weighed)


def _anybody(able: Sequence[Candidate], chance: Chance) -> Candidate:
    """Return a random listing of a random owner."""
    ordered = sorted(able, key=lambda each: (each.owner, each.listing))
    owners = [list(listings) for _, listings in groupby(ordered, key=lambda each: each.owner)]
    listings = owners[int(chance() * len(owners))]
    return listings[int(chance() * len(listings))]


def _draw(weighed: Sequence[Weighed], chance: Chance) -> Candidate:
    point = chance()
    for each in weighed:
        point -= each.share
        if point < 0:
            return each.candidate
    # The shares add up to 1 except for rounding; the first is the largest.
    return weighed[0].candidate


def _less_busy(one: Candidate, other: Candidate) -> Candidate:
    return other if other.headroom > one.headroom else one


def _holder(weighed: Sequence[Weighed], need: Need) -> Candidate | None:
    holders = [each.candidate for each in weighed if each.share and each.candidate.saved_nano > 0]
    return min(holders, key=lambda each: (each.effective_with_prefix_nano(need), each.listing), default=None)


def _saves(holder: Candidate, drawn: Candidate, need: Need) -> bool:
    there, here = holder.effective_with_prefix_nano(need), drawn.effective_with_prefix_nano(need)
    return there < here * (1 - PREFIX_EPSILON)
