"""Times and durations as users and programs write them."""

import re
import time
from datetime import UTC, datetime


def at(time_ns: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    when = datetime.fromtimestamp(time_ns // 10**6 / 1_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 10**6


# `ms` comes before `m`, because the first that matches counts.
_UNITS_S = {"h": 3600.0, "ms": 1e-3, "m": 60.0, "s": 1.0, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ns": 1e-9}
_PART = rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(_UNITS_S)})"
# Every number has its unit, so each text has one meaning.
_DURATION = re.compile(rf"([-+]?)(?:0|(?:{_PART})+)")


def as_seconds(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it, such as `1h30m`, `-1s` or `0`; None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text))
    return -seconds if found[1] == "-" else seconds
