"""Whether a guest may come in, and where to: only to what its owner leaves idle. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.lanes.base import Offer
from gateway.openai import GENERATES
from gateway.settings import LaneName

OWN: frozenset[LaneName] = frozenset(("cluster", "pool"))
"""Guests are answered by the owner's machines, and by nobody else."""

Why = Literal["paused", "own_work", "no_slot"]

SENTENCES: dict[Why, str] = {
    "paused": "an operator has paused selling",
    "own_work": "the owner's own requests run or wait here",
    "no_slot": "every slot of this model is taken",
}


@dataclass(frozen=True, slots=True)
class OwnWork:
    """What the owner has under way on this gateway: requests that run or wait, and batches that are not done."""

    requests: int
    batches: int

    @property
    def is_none(self) -> bool:
        return not self.requests and not self.batches


@dataclass(frozen=True, slots=True)
class Places:
    """Places of guests by backend: those they have, and the most they had of late, which it may still count.

    Backends that do not say how many slots they have are taken to have `slots_unknown`.
    """

    taken: Mapping[str, int]
    lately: Mapping[str, int]
    slots_unknown: int

    def of(self, offer: Offer) -> int:
        """All that guests could have there.

        Our own cluster keeps a slot back where it has several: what the owner asked last stays cached there.
        """
        slots = self.slots_unknown if offer.slots is None else offer.slots
        return slots - 1 if offer.lane == "cluster" and slots > 1 else slots

    def free(self, offer: Offer) -> int:
        return max(0, self.of(offer) - self.taken.get(offer.label, 0))


def choose(offers: Sequence[Offer], places: int, present: Places, work: OwnWork) -> Offer | Why:
    """The first offer with so many free places, best first as they come; or why there is none.

    As long as there is no own work nobody but guests has any place that we know of.
    """
    if not work.is_none:
        return "own_work"
    for offer in offers:
        if is_open(offer, present) and present.free(offer) >= places:
            return offer
    return "no_slot"


def is_open(offer: Offer, present: Places) -> bool:
    """Whether guests may be answered there at all.

    It is the owner's own, to whom buyers are promised that nobody else reads along. It is in memory (to load one
    model may put another out), asks no price, and works for nobody else, as far as it says.
    """
    is_there = offer.lane in OWN and offer.state == "ready" and offer.is_resident and offer.price is None
    is_private = offer.clearance == "private" and not offer.keeps_data
    has_others = offer.is_gateway or (offer.running or 0) > present.lately.get(offer.label, 0)
    return (
        is_there and is_private and not has_others and not offer.queued and not offer.kinds.isdisjoint(GENERATES)
    )
