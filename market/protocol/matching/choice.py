"""Choose a seller: the less busy of two weighted draws, and now and then a random one, to learn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from market.protocol.matching.candidate import Candidate
from market.protocol.matching.weights import Weighed, weigh

EXPLORED = 0.01
"""The share of requests that go to a random owner, new sellers included."""

Chance = Callable[[], float]
"""Returns the next random number from 0 up to 1. Passed in, so that a choice can be repeated."""


@dataclass(frozen=True, slots=True)
class MatchChoice:
    """The chosen candidate, with everything that was weighed."""

    candidate: Candidate
    weighed: tuple[Weighed, ...]


def choose(candidates: Sequence[Candidate], chance: Chance) -> MatchChoice | None:
    """Choose a candidate, or return None if none may serve.

    After a failure, choose again without the candidates that failed.
    """
    weighed = tuple(weigh(candidates))
    able = [each.candidate for each in weighed if each.excluded is None]
    if not able:
        return None
    if chance() < EXPLORED or not any(each.share for each in weighed):
        return MatchChoice(_anybody(able, chance), weighed)
    return MatchChoice(_less_busy(_draw(weighed, chance), _draw(weighed, chance)), weighed)


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
