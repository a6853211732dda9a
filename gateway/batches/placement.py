"""The lane for a request of a batch now: idle own machines, paid lanes if time runs out, or none yet. Pure."""

from dataclasses import dataclass
from typing import Literal

from gateway.lanes.base import Offer
from gateway.routing.decision import Candidate, Decision
from gateway.routing.policy import Check
from gateway.settings import LaneName
from gateway.settings.base import FOREIGN
from gateway.settings.batches import BatchesSettings

Verdict = Literal["own", "paid", "wait", "hopeless"]
"""`hopeless`: no backend can ever answer it; serving it then reports the error."""

OWN: frozenset[LaneName] = frozenset(("cluster", "pool"))
PAID: frozenset[LaneName] = FOREIGN

# Objections that pass by themselves; all others stay.
_PASSING: frozenset[Check] = frozenset(("down", "draining", "breaker"))
# Paid lanes are used only when the time left is short. Own machines keep this share of the window in reserve. The
# remaining requests are assumed to take this many times as long as so far.
_RESERVE_SHARE = 0.1
_CAUTION = 2.0


@dataclass(frozen=True, slots=True)
class BatchPace:
    """A batch's progress. `item_s` is the duration of one request, `abreast` how many run at a time."""

    left_s: float
    window_s: float
    items: int
    item_s: float
    abreast: int

    @property
    def is_late(self) -> bool:
        """Return whether the window would be missed if paid lanes were used any later."""
        need_s = self.items * self.item_s / max(1, self.abreast)
        return self.left_s <= _RESERVE_SHARE * self.window_s + _CAUTION * need_s


def choose(own: Decision, paid: Decision | None, pace: BatchPace, bounds: BatchesSettings) -> Verdict:
    """Choose a lane.

    `own` is routing's decision over own lanes only, `paid` the one over paid lanes, if allowed.
    """
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
    """Return whether the next interactive request would still find the backend as idle as before."""
    predicted, load = candidate.predicted, candidate.predicted.load
    if not load.is_resident:
        # Loading a model may evict the one in use.
        return load.beside == 0
    return load.beside < _places(candidate.offer, bounds) and predicted.wait_s <= bounds.wait_s


def _places(offer: Offer, bounds: BatchesSettings) -> int:
    if offer.slots is None:
        return bounds.per_backend_max
    return min(bounds.per_backend_max, max(1, offer.slots - 1))
