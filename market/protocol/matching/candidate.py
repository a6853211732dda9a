"""Represent the facts about a seller's listing that matching needs."""

from dataclasses import dataclass
from typing import Literal

from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.track import Track

PROBATION_COST_MAX_NANO = 10_000_000
"""A cent: more expensive requests are not sent to new sellers."""

Exclusion = Literal["broken", "full", "probation"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A listing that could serve a request, after the hard rules (model, region, policy, price limits).

    `owner` is the seller's owner as far as known: identities of one owner compete as one. `cost_nano` is the
    probable cost of the request there.
    """

    listing: str
    owner: str
    cost_nano: int
    track: Track
    cap: LearnedCap
    in_flight: int = 0
    is_probation: bool = False
    is_broken: bool = False

    @property
    def headroom(self) -> float:
        """The free share of the seller's cap, from 0 to 1."""
        return self.cap.headroom(self.in_flight)

    @property
    def effective_nano(self) -> float:
        """The cost of a successful answer there, in nano-USD, if a failed attempt costs as much."""
        return self.cost_nano / self.track.served.rate

    @property
    def exclusion(self) -> Exclusion | None:
        """Return why it is not weighed at all, or None."""
        if self.is_broken:
            return "broken"
        if self.headroom <= 0:
            return "full"
        if self.is_probation and self.cost_nano > PROBATION_COST_MAX_NANO:
            return "probation"
        return None
