"""Further names of a lane's models, as the owner sets them. The pool goes by them backend by backend."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gateway.lanes.base import Offer

Aliases = Mapping[str, Sequence[str]]
"""A lane, or a backend of the pool, uses the first model of each list that it has."""


def names_with(aliases: Aliases, own: Collection[str]) -> list[str]:
    """Every name that callers may use for a lane's own models."""
    return sorted({*own, *(alias for alias, targets in aliases.items() if any(each in own for each in targets))})


def offers_of(aliases: Aliases, model: str, own: Callable[[str], list[Offer]]) -> list[Offer]:
    """A lane's offers of a model, or of what the name is an alias of; a model's own name comes first."""
    if found := own(model):
        return found
    for target in aliases.get(model, ()):
        if found := own(target):
            return [_renamed(offer, model) for offer in found]
    return []


def _renamed(offer: Offer, alias: str) -> Offer:
    """Limits on the model itself also apply, and the lane puts its name into the request."""
    return replace(offer, model=alias, served_as=offer.model_there, stands_for=(offer.model, *offer.stands_for))
