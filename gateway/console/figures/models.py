"""Models as the console lists them: endpoints, state and price. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.admin.catalogue import Entry
from gateway.lanes.base import Offer, State

# Best state first: a model has the state of its best endpoint.
_ORDER: tuple[State, ...] = ("ready", "starting", "draining", "down")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model that callers may name, and every endpoint that serves it."""

    entry: Entry
    state: State
    cheapest: Offer | None
    is_loadable: bool
    """Whether a backend can be told to load or unload it."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def offers(self) -> tuple[Offer, ...]:
        return self.entry.offers

    @property
    def precisions(self) -> list[str]:
        """The weight precisions, as far as endpoints report them."""
        return sorted({precision for offer in self.offers if (precision := precision_of(offer))})

    @property
    def alias_of(self) -> list[str]:
        """The names that endpoints serve it under, if different."""
        return sorted({offer.served_as for offer in self.offers if offer.served_as})


def precision_of(offer: Offer) -> str:
    """Return the precision. The cluster puts it after its weights' name; others may report it themselves."""
    return offer.quantization or (offer.weights.rpartition("/")[2] if offer.lane == "cluster" else "")


def model_rows(entries: Sequence[Entry], loadable: Iterable[str] = ()) -> list[ModelRow]:
    """Return rows by name; `loadable` are names that a backend can load and unload."""
    manageable = frozenset(loadable)
    return [_row(entry, is_loadable=entry.name in manageable) for entry in entries]


def _row(entry: Entry, *, is_loadable: bool) -> ModelRow:
    states = sorted((offer.state for offer in entry.offers), key=_ORDER.index)
    priced = [offer for offer in entry.offers if offer.price is not None and offer.price.compute_nano is None]
    cheapest = min(priced, key=_price_nano, default=None)
    return ModelRow(entry, states[0] if states else "down", cheapest, is_loadable)


def _price_nano(offer: Offer) -> int:
    assert offer.price
    return offer.price.price.prompt_nano + offer.price.price.completion_nano
