"""Aliases of a lane's models, set by the owner. The pool applies them to each backend separately."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gateway.lanes.base import Offer

Aliases = Mapping[str, Sequence[str]]
"""Models by alias: a lane, or a backend of the pool, uses the first model of the list that it has."""


def names_with(aliases: Aliases, own: Collection[str]) -> list[str]:
    """Return every name that callers may use for a lane's own models."""
    return sorted({*own, *(alias for alias, targets in aliases.items() if any(each in own for each in targets))})


def offers_of(aliases: Aliases, model: str, own: Callable[[str], list[Offer]]) -> list[Offer]:
    """Return a lane's offers of a model, or of an alias's models; a model's own name takes precedence."""
    if found := own(model):
        return found
    for target in aliases.get(model, ()):
        if found := own(target):
            return [_renamed(offer, model) for offer in found]
    return []


def _renamed(offer: Offer, alias: str) -> Offer:
    """Return an alias's offer: limits on the model itself also apply, and the lane requests it by its own name."""
    return replace(offer, model=alias, served_as=offer.model_there, stands_for=(offer.model, *offer.stands_for))
