"""Each backend's health: requests in progress, pending prompts, failures, breakers, its models' rates."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.lanes.base import Offer
from gateway.routing.breaker import Breakers
from gateway.routing.priors import Speed
from gateway.routing.rates import Rates

# A backend with many models keeps the rates of recently requested ones.
_MODELS_MAX = 64
# Backends come and go with discovery; this is far more than any gateway has at a time.
_BACKENDS_MAX = 4096
# The assumed failure rate is one in a hundred, with the weight of ten requests.
USUAL_FAILURE_SHARE = 0.01
_PRIOR_REQUESTS = 10.0
_HALF_LIFE_S = 120.0
# The time in which a thousandth of the weight fades.
_FADE_EVERY_S = 0.2


@dataclass(slots=True)
class Health:
    """One backend's record. `pending_tokens` are of prompts sent there whose answers have not begun.

    `speaking` counts streams that have begun; `spoke_most` is their highest number at a time. `waiting` requests
    are in this gateway's queue for it. `freed_s` is when a request last ended there or found it idle; `answered_s`
    is when an answer last began there, or when the first pending one was sent.
    """

    in_flight: int = 0
    waiting: int = 0
    pending_tokens: int = 0
    speaking: int = 0
    spoke_most: int = 0
    freed_s: float = 0.0
    answered_s: float = 0.0
    breakers: Breakers = field(default_factory=Breakers)
    _failed: float = 0.0
    _ended: float = 0.0
    _counted_s: float = 0.0
    _rates: OrderedDict[str, Rates] = field(default_factory=OrderedDict)

    def rates_of(self, offer: Offer) -> Rates:
        """The learned rates of the offered model there."""
        rates = self._rates.get(offer.model)
        if rates is None or not rates.holds_for(offer):
            rates = self._rates[offer.model] = Rates(offer)
            if len(self._rates) > _MODELS_MAX:
                self._rates.popitem(last=False)
        return rates

    def siblings_of(self, offer: Offer) -> list[tuple[Speed, int]]:
        """The speeds and sizes of the backend's other models, as far as both are known."""
        others = [rates for model, rates in self._rates.items() if model != offer.model]
        return [(speed, rates.size_bytes) for rates in others if rates.size_bytes and (speed := rates.speed)]

    def stalled_s(self, beside: int, slots: int | None, now_s: float) -> float:
        """Return how long no slot has become free while all are taken, or no pending stream has begun."""
        if not self.in_flight:
            return 0.0
        stalled_s = now_s - self.freed_s if slots and beside >= slots else 0.0
        return max(stalled_s, now_s - self.answered_s) if self.pending_tokens else stalled_s

    def owes(self, tokens: int, now_s: float) -> None:
        """Note a pending stream whose prompt has `tokens` new tokens."""
        if not self.pending_tokens:
            self.answered_s = now_s
        self.pending_tokens += tokens

    def failure_share(self, now_s: float) -> float:
        """Return the probability that the next request fails.

        It combines observations, with a half-life of two minutes, and a prior.
        """
        if not self._failed:
            return USUAL_FAILURE_SHARE
        fade = math.exp2((self._counted_s - now_s) / _HALF_LIFE_S)
        prior = USUAL_FAILURE_SHARE * _PRIOR_REQUESTS
        return (self._failed * fade + prior) / (self._ended * fade + _PRIOR_REQUESTS)

    def began(self, model: str, now_s: float) -> None:
        """Note that a request for this model was sent there; one of the methods below follows."""
        if not self.in_flight:
            self.freed_s = now_s
        self.in_flight += 1
        if not self.breakers.are_clear:
            self.breakers.began(model, now_s)

    def succeeded(self, model: str, now_s: float) -> None:
        self._end(now_s)
        if not self.breakers.are_clear:
            self.breakers.succeeded(model, now_s)
        self._count(now_s, has_failed=False)

    def failed(self, model: str, now_s: float) -> None:
        self._end(now_s)
        self.breakers.failed(model, now_s)
        self._count(now_s, has_failed=True)

    def unreachable(self, now_s: float) -> None:
        """Note that there was no connection; this concerns all models."""
        self._end(now_s)
        self.breakers.unreachable(now_s)
        self._count(now_s, has_failed=True)

    def left(self, model: str, now_s: float) -> None:
        """Note an end without a verdict: the caller disconnected, or the request was invalid."""
        self._end(now_s)
        self.breakers.left(model)

    def asked(self, model: str, now_s: float, retry_after_s: float | None, *, is_limit: bool) -> None:
        """Note that the backend is healthy but has no room for this model, or asked for a pause."""
        self.left(model, now_s)
        self.breakers.asked(model, now_s, retry_after_s, is_limit=is_limit)

    def _end(self, now_s: float) -> None:
        self.freed_s = now_s
        if self.in_flight:
            self.in_flight -= 1

    def _count(self, now_s: float, *, has_failed: bool) -> None:
        if now_s - self._counted_s > _FADE_EVERY_S:
            fade = math.exp2((self._counted_s - now_s) / _HALF_LIFE_S)
            self._failed *= fade
            self._ended *= fade
            self._counted_s = now_s
            if self._failed < 0.001:
                self._failed = 0.0
        self._failed += has_failed
        self._ended += 1


@dataclass(slots=True)
class LaneHealth:
    """Records by backend label; one event loop writes them."""

    clock: Callable[[], float] = time.monotonic
    _records: dict[str, Health] = field(default_factory=dict)

    def of(self, label: str) -> Health:
        record = self._records.get(label)
        if record is None:
            if len(self._records) >= _BACKENDS_MAX:
                self._forget_idle()
            record = self._records[label] = Health()
        return record

    def labels(self) -> list[str]:
        return list(self._records)

    def now_s(self) -> float:
        return self.clock()

    def _forget_idle(self) -> None:
        for label in [label for label, record in self._records.items() if not record.in_flight]:
            del self._records[label]
