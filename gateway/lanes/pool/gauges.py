"""Reads a few gauges by name from Prometheus text."""

import math
from collections.abc import Iterable

LINES_MAX = 20_000


def read_gauges(text: bytes, names: Iterable[str]) -> dict[str, float]:
    """Return the named series, each in its own unit and summed over its labels.

    Series that are missing or are not numbers are omitted. Servers with several engines in one process write a
    line for each.
    """
    encoded_names = {name.encode() for name in names}
    sums: dict[str, float] = {}
    for line in text.split(b"\n", LINES_MAX)[:LINES_MAX]:
        if not line or line.startswith(b"#"):
            continue
        name, _, rest = line.partition(b"{") if b"{" in line else line.partition(b" ")
        if name not in encoded_names:
            continue
        value = _value(rest.rpartition(b"}")[2] if b"}" in rest else rest)
        if value is not None:
            sums[name.decode()] = sums.get(name.decode(), 0.0) + value
    return sums


def _value(text: bytes) -> float | None:
    """Return the first number; a time stamp may follow it."""
    try:
        value = float(text.split()[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def count(sums: dict[str, float], name: str) -> int | None:
    """Return a number of requests; None if the series is missing."""
    value = sums.get(name)
    return None if value is None else int(min(value, 1_000_000))
