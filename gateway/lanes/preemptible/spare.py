"""The spare models of this gateway for preemptible requests, with the facts that a listing needs. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from accounting.metering.tokenizers import Pinned
from gateway.lanes.base import Offer
from gateway.lanes.preemptible.admission import Places, is_open

_SHA_CHARS = 64


@dataclass(frozen=True, slots=True)
class SpareModel:
    """One model over all its backends here. Facts that are unknown, or on which they differ, are None.

    `slots` is what preemptible requests could use if there were no own work; `slots_free` is that less what they use.
    `tokenizer_path` is a file on this machine.
    """

    id: str
    slots_free: int
    slots: int
    context_tokens: int | None
    weights_sha256: str | None
    tokenizer_sha256: str | None
    tokenizer_path: str | None
    quantization: str | None


def spare_models(
    offers: Iterable[Offer],
    present: Places,
    tokenizer_of: Callable[[str], Pinned | None],
) -> tuple[SpareModel, ...]:
    """Return the models that could serve a preemptible request, ordered by name."""
    by_model: dict[str, list[Offer]] = {}
    for offer in offers:
        if is_open(offer, present):
            by_model.setdefault(offer.model, []).append(offer)
    return tuple(_spare(model, found, present, tokenizer_of(model)) for model, found in sorted(by_model.items()))


def _spare(model: str, offers: Sequence[Offer], present: Places, pinned: Pinned | None) -> SpareModel:
    contexts = [offer.context_tokens for offer in offers]
    known = [tokens for tokens in contexts if tokens is not None]
    return SpareModel(
        id=model,
        slots_free=sum(present.free(offer) for offer in offers),
        slots=sum(present.of(offer) for offer in offers),
        # A preemptible request may get any of the backends.
        context_tokens=min(known) if len(known) == len(contexts) else None,
        weights_sha256=_agreed(_weights(offer) for offer in offers),
        tokenizer_sha256=pinned.sha256.lower() if pinned else None,
        tokenizer_path=str(pinned.path.absolute()) if pinned else None,
        quantization=_agreed(_quantization(offer) for offer in offers),
    )


def _weights(offer: Offer) -> str | None:
    """Return the digest of the model's bytes, without the precision that follows it."""
    digest = offer.weights.partition("/")[0]
    return digest if len(digest) == _SHA_CHARS else None


def _quantization(offer: Offer) -> str | None:
    return offer.quantization or offer.weights.partition("/")[2] or None


def _agreed(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None
