"""Where a request of a batch may go now: idle own machines, paid lanes when time runs out, nowhere yet. Pure."""

from dataclasses import dataclass
from typing import Literal

from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate, Decision
from gateway.routing.policy import Check
from gateway.settings import LaneName
from gateway.settings.base import FOREIGN
from gateway.settings.batches import BatchesSettings

Verdict = Literal["own", "paid", "wait", "hopeless"]
"""`hopeless`: nobody will ever answer it, and the journey's error says why."""

OWN: frozenset[LaneName] = frozenset(("cluster", "pool"))
PAID: frozenset[LaneName] = FOREIGN

# What passes by itself; whatever else stands against an offer stays.
_PASSING: frozenset[Check] = frozenset(("down", "draining", "breaker"))
# Before a paid lane has to be asked, own machines get so much of the window, and the rest may go twice as slowly
# as so far.
_RESERVE_SHARE = 0.1
_CAUTION = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How a batch gets on. `item_s` is what one request takes, `abreast` how many run at a time."""

    left_s: float
    window_s: float
    items: int
    item_s: float
    abreast: int

    @property
    def is_late(self) -> bool:
        """Whether the window would be missed if paid lanes were asked any later."""
        need_s = self.items * self.item_s / max(1, self.abreast)
        return self.left_s <= _RESERVE_SHARE * self.window_s + _CAUTION * need_s


def choose(own: Decision, paid: Decision | None, pace: Pace, bounds: BatchesSettings) -> Verdict:
    """`own` is routing's decision over own lanes alone, `paid` the one over lanes that cost, where allowed."""
    if own.candidates and has_room(own.candidates[0], bounds):
        return "own"
    may_be_own = bool(own.candidates) or any(is_passing(r.objection.check) for r in own.rejections)
    if paid and paid.candidates and (not may_be_own or pace.is_late):
        return "paid"
    may_be_paid = paid is not None and any(is_passing(r.objection.check) for r in paid.rejections)
    return "wait" if may_be_own or may_be_paid else "hopeless"


def is_passing(check: Check) -> bool:
    return check in _PASSING


def has_room(candidate: Candidate, bounds: BatchesSettings) -> bool:
    """Whether whoever comes next would find the backend as idle as before."""
    predicted, load = candidate.predicted, candidate.predicted.load
    if not load.is_resident:
        # To load a model may put out the one that is in use.
        return load.beside == 0
    return load.beside < _places(candidate.offer, bounds) and predicted.wait_s <= bounds.wait_s


def _places(offer: Offer, bounds: BatchesSettings) -> int:
    if offer.slots is None:
        return bounds.per_backend_max
    return min(bounds.per_backend_max, max(1, offer.slots - 1))
