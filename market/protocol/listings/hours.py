"""Decide when a seller sells: weekly windows in its own time, an offset from UTC that needs no time zone table."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

TimeOfDay = Annotated[str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]\Z")]
UtcOffset = Annotated[str, Meta(pattern=r"^[+-](0[0-9]|1[0-4]):[0-5][0-9]\Z")]
Weekday = Annotated[int, Meta(ge=0, le=6)]

_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_EPOCH_WEEKDAY = 3
"""The first of January 1970 was a Thursday."""


class WeeklyWindow(Struct, frozen=True):
    """From one time of day to another on these days (0 is Monday), at this offset from UTC.

    If it ends at or before its beginning, it ends on the next day: 22:00 to 07:00 is a night, and 00:00 to 00:00 a
    day. The days are those on which it begins.
    """

    days: tuple[Weekday, ...]
    begins: TimeOfDay
    ends: TimeOfDay
    utc_offset: UtcOffset = "+00:00"


def is_open(windows: Sequence[WeeklyWindow], now_ms: int) -> bool:
    """Return whether the time is in one of the windows; always True without any."""
    return not windows or any(_is_in(window, now_ms) for window in windows)


def _is_in(window: WeeklyWindow, now_ms: int) -> bool:
    now = _minute_of_week(now_ms, _offset_minutes(window.utc_offset))
    length = (_minute_of_day(window.ends) - _minute_of_day(window.begins) - 1) % _DAY_MINUTES + 1
    gone = [(now - day * _DAY_MINUTES - _minute_of_day(window.begins)) % _WEEK_MINUTES for day in window.days]
    return any(minutes < length for minutes in gone)


def _minute_of_week(now_ms: int, offset_minutes: int) -> int:
    return (now_ms // _MINUTE_MS + offset_minutes + _EPOCH_WEEKDAY * _DAY_MINUTES) % _WEEK_MINUTES


def _minute_of_day(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


def _offset_minutes(text: str) -> int:
    return _minute_of_day(text[1:]) * (-1 if text[0] == "-" else 1)
