"""Represent the facts about a seller's listing and a request that matching needs."""

from dataclasses import dataclass
from typing import Literal

from market.protocol.listings.prices import effective_nano
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.track import Track

PROBATION_COST_MAX_NANO = 10_000_000
"""A cent: more expensive requests are not sent to new sellers."""

Exclusion = Literal["broken", "full", "probation"]


@dataclass(frozen=True, slots=True)
class Need:
    """A request's needs: whether new sellers may see it, by when it should begin, and the cost of a second."""

    is_sensitive: bool = False
    ttft_target_s: float = 2.0
    second_nano: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A listing that could serve a request, after the hard rules (model, region, policy, price limits).

    `owner` is the seller's owner as far as known: identities of one owner compete as one. `cost_nano` is the
    probable cost of the request there, `saved_nano` the part that a cached prefix saves.
    """

    listing: str
    owner: str
    cost_nano: int
    track: Track
    cap: LearnedCap
    in_flight: int = 0
    ttft_p90_s: float = 0.0
    saved_nano: int = 0
    is_probation: bool = False
    is_broken: bool = False

    @property
    def headroom(self) -> float:
        """The free share of the seller's cap, from 0 to 1."""
        return self.cap.headroom(self.in_flight)

    def effective_nano(self, need: Need) -> float:
        """Return the real cost of an answer there, without the savings of a prefix."""
        return self._effective_nano(self.cost_nano, need)

    def effective_with_prefix_nano(self, need: Need) -> float:
        return self._effective_nano(max(0, self.cost_nano - self.saved_nano), need)

    def _effective_nano(self, nano: int, need: Need) -> float:
        late_s = self.ttft_p90_s - need.ttft_target_s
        return effective_nano(nano, self.track.served.rate, late_s, need.second_nano)

    def exclusion(self, need: Need) -> Exclusion | None:
        """Return why it is not weighed at all, or None."""
        if self.is_broken:
            return "broken"
        if self.headroom <= 0:
            return "full"
        if self.is_probation and (need.is_sensitive or self.cost_nano > PROBATION_COST_MAX_NANO):
            return "probation"
        return None
