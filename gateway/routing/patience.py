"""When a first byte is late, when the wait for it ends, and how many requests may go to a second backend."""

from collections import OrderedDict
from typing import TypeAlias

from gateway.lanes.base import Offer
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Rates

# After this number of answers a backend's usual time is known; the last ones count.
_SEEN_MIN = 20
_SEEN_MAX = 64
_RENEW_EVERY = 8
_MOSTLY = 0.95
# Shorter delays hurt no caller, and do not justify a second request.
_LEAST_S = 0.05
_BACKENDS_MAX = 2048
# The share of eligible requests that are sent to a second backend as well.
_SHARE = 0.05
_SAVED_MAX = 5.0

# A first byte is late after this time and this multiple of the predicted time. The wait ends after the setting's
# time and a larger multiple: predictions are rough for hardware that has not answered yet.
_LATE_S = 3.0
_LATE_TIMES = 2.0
_GIVEN_UP_TIMES = 5.0
# The tokens assumed for a whole answer without a limit.
_WHOLE_TOKENS = 4096

_Key: TypeAlias = tuple[str, str, bool]


def late_after_s(predicted: Prediction, rates: Rates) -> float:
    """When to look for another backend. Excludes time for other requests there, because their answers show it."""
    own_s = predicted.first_token_s - predicted.wait_s
    if not predicted.load.is_stream:
        own_s += predicted.tokens * rates.token_alone_s
    return _LATE_S + _LATE_TIMES * own_s


def give_up_after_s(predicted: Prediction, limit_tokens: int | None, first_byte_s: float) -> float:
    """How long to wait at all: longer for long prompts, models to load, queues and whole answers."""
    own_s = predicted.first_token_s - predicted.wait_s
    if not predicted.load.is_stream:
        own_s += (limit_tokens or _WHOLE_TOKENS) * predicted.token_s
    return first_byte_s + _GIVEN_UP_TIMES * own_s + predicted.wait_s


class FirstBytes:
    """The last times to the first byte of one model at one backend, and their 95th percentile."""

    __slots__ = ("_at", "_seen", "mostly_s")

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._at = 0
        self.mostly_s: float | None = None

    def add(self, seconds: float) -> None:
        if len(self._seen) < _SEEN_MAX:
            self._seen.append(seconds)
        else:
            self._seen[self._at % _SEEN_MAX] = seconds
        self._at += 1
        if self._at >= _SEEN_MIN and not self._at % _RENEW_EVERY:
            ordered = sorted(self._seen)
            self.mostly_s = max(_LEAST_S, ordered[int(_MOSTLY * len(ordered))])


class Patience:
    """When to ask a second backend. One event loop owns it.

    Streams and whole answers are separate: a stream begins with its first token, a whole answer with its last.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[_Key, FirstBytes] = OrderedDict()
        self._saved = 1.0

    def of(self, offer: Offer, *, is_stream: bool) -> FirstBytes:
        """The offer's record. Counts one more request that could go to a second backend."""
        self._saved = min(_SAVED_MAX, self._saved + _SHARE)
        key = offer.label, offer.model, is_stream
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = FirstBytes()
            if len(self._times) > _BACKENDS_MAX:
                self._times.popitem(last=False)
        return times

    def spend(self) -> bool:
        """Whether one more request may be asked of a second backend now."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
