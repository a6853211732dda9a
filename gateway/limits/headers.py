"""What callers read of a limit in OpenAI's headers."""

from gateway.limits.counters import Counter

Headers = list[tuple[bytes, bytes]]


def headers_of(counter: Counter, reset_s: float) -> Headers:
    """Limit, rest, and when all of it is there again. OpenAI has them for requests and tokens alone."""
    measure = counter.key.measure
    if measure not in ("requests", "tokens"):
        return []
    name = measure.encode()
    return [
        (b"x-ratelimit-limit-" + name, b"%d" % counter.amount),
        (b"x-ratelimit-remaining-" + name, b"%d" % max(0, counter.visible)),
        (b"x-ratelimit-reset-" + name, _duration(reset_s)),
    ]


def _duration(seconds: float) -> bytes:
    """As OpenAI writes them: 1h2m3s, 3s, 120ms."""
    if seconds < 1:
        return b"%dms" % max(0, round(1000 * seconds))
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (b"%dh" % hours if hours else b"") + (b"%dm" % minutes if minutes or hours else b"") + b"%ds" % rest_s
