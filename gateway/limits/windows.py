"""Starts and ends of spans on the UTC calendar, in whole seconds since 1970."""

from datetime import UTC, date, datetime, timedelta

from gateway.quota import Span

MINUTE_S = 60
DAY_S = 86_400


def window(span: Span, at_s: float) -> tuple[int, int]:
    """Return the full minute, day or month of this time: its first second, and the first one after it."""
    second = int(at_s // 1)
    if span != "month":
        length_s = MINUTE_S if span == "minute" else DAY_S
        begin_s = second - second % length_s
        return begin_s, begin_s + length_s
    day = datetime.fromtimestamp(second, UTC).date().replace(day=1)
    # No month has more than 31 days, so 32 after the first of one is always in the next.
    return _first_second(day), _first_second((day + timedelta(days=32)).replace(day=1))


def boundaries(span: Span, at_s: float) -> tuple[int, int, int, int]:
    """Return the starts of the previous, current and next two windows, for a process with another clock."""
    begin_s, end_s = window(span, at_s)
    return window(span, begin_s - 1)[0], begin_s, end_s, window(span, end_s)[1]


def _first_second(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
