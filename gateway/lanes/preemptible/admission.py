"""Admission of preemptible requests: only to what the owner leaves idle. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.dialects.openai import GENERATES
from gateway.lanes.base import Offer
from gateway.settings import LaneName

OWN: frozenset[LaneName] = frozenset(("cluster", "pool"))
"""Preemptible requests are served by the owner's machines only."""

Why = Literal["paused", "own_work", "no_slot"]

SENTENCES: dict[Why, str] = {
    "paused": "an operator has paused selling",
    "own_work": "the owner's requests are running or waiting here",
    "no_slot": "every slot of this model is taken",
}


@dataclass(frozen=True, slots=True)
class OwnWork:
    """The owner's work on this gateway: running or queued requests, and unfinished batches."""

    requests: int
    batches: int

    @property
    def is_none(self) -> bool:
        return not self.requests and not self.batches


@dataclass(frozen=True, slots=True)
class Places:
    """Preemptible requests' slots by backend: those in use, and the most in use lately, which the backend may
    still count.

    Backends that do not state their slots are assumed to have `slots_unknown`.
    """

    taken: Mapping[str, int]
    lately: Mapping[str, int]
    slots_unknown: int

    def of(self, offer: Offer) -> int:
        """Return the number of slots that preemptible requests can have there.

        Our own cluster keeps one slot back if it has several, so that the owner's last prompt stays cached there.
        """
        slots = self.slots_unknown if offer.slots is None else offer.slots
        return slots - 1 if offer.lane == "cluster" and slots > 1 else slots

    def free(self, offer: Offer) -> int:
        return max(0, self.of(offer) - self.taken.get(offer.label, 0))


def choose(offers: Sequence[Offer], places: int, present: Places, work: OwnWork) -> Offer | Why:
    """Return the first offer with enough free slots, in the given order, or why there is none.

    While there is no own work, preemptible requests hold all slots that we know of.
    """
    if not work.is_none:
        return "own_work"
    for offer in offers:
        if is_open(offer, present) and present.free(offer) >= places:
            return offer
    return "no_slot"


def is_open(offer: Offer, present: Places) -> bool:
    """Return whether preemptible requests may be served there at all.

    It must be a machine of the owner, because buyers are promised that no one else can read their data. It must
    have the model in memory, since loading one may evict another. It must have no price, and serve no one else as
    far as it states.
    """
    is_there = offer.lane in OWN and offer.state == "ready" and offer.is_resident and offer.price is None
    is_private = offer.clearance == "private" and not offer.keeps_data
    has_others = offer.is_gateway or (offer.running or 0) > present.lately.get(offer.label, 0)
    return (
        is_there and is_private and not has_others and not offer.queued and not offer.kinds.isdisjoint(GENERATES)
    )
