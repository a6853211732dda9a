"""OpenAI's headers about limits."""

import math

from gateway.limits.counters import Counter

Headers = list[tuple[bytes, bytes]]

# The measures that OpenAI has headers for.
_SHOWN = ("requests", "tokens")


class Shown:
    """One counter's headers, cached for consecutive answers: time-dependent values are updated once a second."""

    __slots__ = ("_limit", "_remaining", "_reset", "_written_until_s", "counter")

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._remaining = b"x-ratelimit-remaining-" + counter.key.measure.encode()
        self._limit = self._reset = (b"", b"")
        self._written_until_s = -math.inf

    def headers(self, now_s: float) -> Headers:
        """Return the limit, the rest, and the time of the full reset."""
        if now_s >= self._written_until_s:
            self._limit, _, self._reset = headers_of(self.counter, self.counter.whole_s(now_s))
            self._written_until_s = now_s // 1 + 1
        left = self.counter.visible
        return [self._limit, (self._remaining, b"%d" % (left if left > 0 else 0)), self._reset]


def headers_of(counter: Counter, reset_s: float) -> Headers:
    """Return the limit, the rest, and the time of the reset. OpenAI has them only for requests and tokens."""
    measure = counter.key.measure
    if measure not in _SHOWN:
        return []
    name = measure.encode()
    return [
        (b"x-ratelimit-limit-" + name, b"%d" % counter.amount),
        (b"x-ratelimit-remaining-" + name, b"%d" % max(0, counter.visible)),
        (b"x-ratelimit-reset-" + name, _duration(reset_s)),
    ]


def _duration(seconds: float) -> bytes:
    """Format a duration as OpenAI does: 1h2m3s, 3s, 120ms."""
    if seconds < 1:
        return b"%dms" % max(0, round(1000 * seconds))
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (b"%dh" % hours if hours else b"") + (b"%dm" % minutes if minutes or hours else b"") + b"%ds" % rest_s
