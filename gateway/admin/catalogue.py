"""Every model of any lane with its known properties, for the APIs that list models."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.dialects.openai import DOES, GENERATES
from gateway.identity.caller import Caller
from gateway.lanes.base import Lane, Lanes, Offer
from gateway.lanes.features import ABILITIES


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and its endpoints; `lanes` have it, or should have it."""

    name: str
    lanes: tuple[str, ...]
    offers: tuple[Offer, ...]

    @property
    def context_tokens(self) -> int | None:
        """The longest context of any backend, in tokens."""
        return max((offer.context_tokens for offer in self.offers if offer.context_tokens), default=None)

    @property
    def kinds(self) -> list[str]:
        """Names of the request kinds that the model serves."""
        kinds = {kind for offer in self.offers for kind in offer.kinds}
        return [words for kind, words in DOES.items() if kind in kinds]

    @property
    def features(self) -> list[str]:
        found = {feature for offer in self.offers for feature in offer.features if offer.kinds & GENERATES}
        return [feature for feature in ABILITIES if feature in found]

    @property
    def is_resident(self) -> bool:
        return any(offer.state == "ready" and offer.is_resident for offer in self.offers)

    @property
    def weights(self) -> str | None:
        """The cluster's weights: it can resume answers of these weights after tokens from another gateway."""
        return next((offer.weights for offer in self.offers if offer.weights and offer.lane == "cluster"), None)

    @property
    def quantization(self) -> str | None:
        return next((offer.quantization for offer in self.offers if offer.quantization), None)


def catalogue(lanes: Lanes, caller: Caller) -> list[Entry]:
    """Return the models that the caller's key may use, sorted by name."""
    having: dict[str, list[Lane]] = {}
    for lane in _allowed(lanes, caller):
        for name in lane.models():
            having.setdefault(name, []).append(lane)
    return [_entry(name, having[name]) for name in sorted(having) if _may_use(caller, name)]


def model_names(lanes: Lanes) -> list[str]:
    """Return the names of all models of these lanes, in order."""
    return sorted({model for lane in lanes.values() for model in lane.models()})


def find_entry(lanes: Lanes, caller: Caller, name: str) -> Entry | None:
    """Return the entry of one model; None if no lane that the caller's key may use has it."""
    having = [lane for lane in _allowed(lanes, caller) if name in lane.models()]
    return _entry(name, having) if having and _may_use(caller, name) else None


def _allowed(lanes: Lanes, caller: Caller) -> list[Lane]:
    return [lane for name, lane in lanes.items() if name in caller.lanes]


def _may_use(caller: Caller, name: str) -> bool:
    return caller.models is None or name in caller.models


def _entry(name: str, lanes: Sequence[Lane]) -> Entry:
    offers = (offer for lane in lanes for offer in lane.offers(name))
    return Entry(name, tuple(lane.name for lane in lanes), tuple(offers))
