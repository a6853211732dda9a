"""Models as the console lists them: what has each of them, in which state, at what price. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.api.catalogue import Entry
from gateway.lanes.base import Offer, State

# The best first: a model is as well as its best place.
_ORDER: tuple[State, ...] = ("ready", "starting", "draining", "down")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model that callers may name, and every place that has it."""

    entry: Entry
    state: State
    cheapest: Offer | None
    is_loadable: bool
    """Whether a backend can be told to load it, or to put it away."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def offers(self) -> tuple[Offer, ...]:
        return self.entry.offers

    @property
    def precisions(self) -> list[str]:
        """As far as places say how narrow their weights are."""
        return sorted({precision for offer in self.offers if (precision := precision_of(offer))})

    @property
    def alias_of(self) -> list[str]:
        """What it is called where it runs, where that is something else."""
        return sorted({offer.served_as for offer in self.offers if offer.served_as})


def precision_of(offer: Offer) -> str:
    """The cluster names its precision behind its weights; others say it themselves, or not."""
    return offer.quantization or (offer.weights.rpartition("/")[2] if offer.lane == "cluster" else "")


def model_rows(entries: Sequence[Entry], loadable: Iterable[str] = ()) -> list[ModelRow]:
    """By name; `loadable` are names that some backend can be told about."""
    told = frozenset(loadable)
    return [_row(entry, is_loadable=entry.name in told) for entry in entries]


def _row(entry: Entry, *, is_loadable: bool) -> ModelRow:
    states = sorted((offer.state for offer in entry.offers), key=_ORDER.index)
    priced = [offer for offer in entry.offers if offer.price is not None and offer.price.compute_nano is None]
    cheapest = min(priced, key=_price_nano, default=None)
    return ModelRow(entry, states[0] if states else "down", cheapest, is_loadable)


def _price_nano(offer: Offer) -> int:
    assert offer.price
    return offer.price.price.prompt_nano + offer.price.price.completion_nano
