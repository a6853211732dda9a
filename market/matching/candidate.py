"""What is known of a seller's listing when a request is to be placed, and what the request is, for matching."""

from dataclasses import dataclass
from typing import Literal

from market.listings.prices import effective_nano
from market.matching.caps import LearnedCap
from market.matching.track import Track

PROBATION_COST_MAX_NANO = 10_000_000
"""A cent: dearer requests are not placed with newcomers."""

Exclusion = Literal["broken", "full", "probation"]


@dataclass(frozen=True, slots=True)
class Need:
    """What matters of a request: whether newcomers may see it, by when it should begin, what a second is worth."""

    is_sensitive: bool = False
    ttft_target_s: float = 2.0
    second_nano: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A listing that could serve a request; hard rules (model, region, policy, price limits) are behind it.

    `owner` is who is behind the seller as far as anybody knows: identities of one owner compete as one.
    `cost_nano` is what the request will probably cost there, `saved_nano` how much of that a prefix saves which it
    still holds.
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
        return self.cap.headroom(self.in_flight)

    def effective_nano(self, need: Need) -> float:
        """What an answer costs there in the end, without what a prefix saves."""
        return self._effective_nano(self.cost_nano, need)

    def effective_with_prefix_nano(self, need: Need) -> float:
        return self._effective_nano(max(0, self.cost_nano - self.saved_nano), need)

    def _effective_nano(self, nano: int, need: Need) -> float:
        late_s = self.ttft_p90_s - need.ttft_target_s
        return effective_nano(nano, self.track.served.rate, late_s, need.second_nano)

    def exclusion(self, need: Need) -> Exclusion | None:
        """Why it is not even weighed."""
        if self.is_broken:
            return "broken"
        if self.headroom <= 0:
            return "full"
        if self.is_probation and (need.is_sensitive or self.cost_nano > PROBATION_COST_MAX_NANO):
            return "probation"
        return None
