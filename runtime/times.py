"""Times as users and programs read them."""

import time
from datetime import UTC, datetime


def at(time_ns: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    when = datetime.fromtimestamp(time_ns // 10**6 / 1_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 10**6
