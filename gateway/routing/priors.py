"""The assumed rates for a model that has not answered at a backend yet. Pure.

The best evidence is used: the backend's own plan, its other models, the same model at other own backends, the
lane's usual rates. Rates scale with model size, because every token reads the whole model.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gateway.lanes.base import Offer
from gateway.settings import LaneName

_TOLD_PROMPT_TOKENS = 512
# A model of this size has its lane's usual speed: 8 billion weights of 5 bits.
_USUAL_BYTES = 5e9
_SCALE_MAX = 20.0
_LEAST_SHARE = 0.01


class Speed(NamedTuple):
    """Overhead before the first token, seconds per prompt token, and seconds per token of the answer."""

    overhead_s: float
    prompt_s: float
    token_s: float

    def scaled(self, times: float) -> "Speed":
        """Return the speed with all seconds per token multiplied by the factor `times`."""
        return Speed(self.overhead_s, self.prompt_s * times, self.token_s * times)


_USUAL: dict[LaneName, Speed] = {
    "cluster": Speed(0.15, 1 / 400, 0.06),
    "pool": Speed(0.1, 1 / 1500, 0.03),
    "cloud": Speed(0.6, 1 / 20_000, 0.015),
    "market": Speed(1.0, 1 / 1000, 0.04),
}


def prior_of(
    offer: Offer,
    siblings: Sequence[tuple[Speed, int]] = (),
    replicas: Sequence[Speed] = (),
) -> Speed:
    """Return the prior. `siblings` are the backend's other models with sizes, `replicas` this model elsewhere."""
    if offer.first_token_s or offer.token_s or offer.price is not None:
        return _foretold(offer)
    usual = _USUAL[offer.lane]
    if siblings and offer.size_bytes:
        speeds = [speed.scaled(_scale(offer.size_bytes, size_bytes)) for speed, size_bytes in siblings]
        return _middle(speeds, usual)
    if replicas:
        return _middle(replicas, usual)
    return usual.scaled(_scale(offer.size_bytes, _USUAL_BYTES)) if offer.size_bytes else usual


def _foretold(offer: Offer) -> Speed:
    """Return the speed of the backend's plan, or its lane's usual speed."""
    overhead_s, prompt_s, token_s = _USUAL[offer.lane]
    if offer.first_token_s:
        overhead_s, prompt_s = 0.1 * offer.first_token_s, 0.9 * offer.first_token_s / _TOLD_PROMPT_TOKENS
    return Speed(overhead_s, prompt_s, offer.token_s or token_s)


def _scale(size_bytes: float, than_bytes: float) -> float:
    return min(_SCALE_MAX, max(1 / _SCALE_MAX, size_bytes / than_bytes))


def _middle(speeds: Sequence[Speed], usual: Speed) -> Speed:
    """Return the median of each part, never zero: a rate of zero would never be updated."""
    found = (median(values) for values in zip(*speeds, strict=True))
    return Speed(*(max(each, _LEAST_SHARE * floor) for each, floor in zip(found, usual, strict=True)))
