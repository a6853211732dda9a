"""Counters of a limit's remaining amount. One event loop owns them.

Every counter has the same numbers, which the hot path reads and changes in place. `left` may still be taken
without asking another process; requests in flight reserve `held`; `taken` is used up permanently. Tokens and
money are held while their request runs, and the actual amount counts when it ends. A request counts when it
enters. A slot (concurrency) is only ever held. The numbers are valid until `ends_s`; after that call `roll` first.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

from gateway.limits.windows import MINUTE_S, window
from gateway.quota import Measure, Quota, Span

# A second counts while any moment of it is within the last 60 seconds: the current one and 60 before it.
_SECONDS = MINUTE_S + 1


SOON_S = 1.0
"""Seconds until a retry if only the end of another request makes room."""
_LEAST_S = 0.001


class CounterKey(NamedTuple):
    """The quantity that a counter counts, without its limit."""

    scope: str
    measure: Measure
    span: Span | None
    model: str | None

    @classmethod
    def of(cls, quota: Quota) -> "CounterKey":
        return cls(quota.scope, quota.measure, quota.span, quota.model)


class Counter(ABC):
    """Base class of all counters; a subclass knows its window. Times are seconds of the owner's clock.

    Amounts have the unit of the key's measure: requests, tokens, or nano-USD of spend.
    """

    __slots__ = ("amount", "ends_s", "held", "key", "left", "taken", "tickets")

    def __init__(self, key: CounterKey, amount: int, ends_s: float) -> None:
        self.key = key
        self.amount = amount
        self.left = amount
        self.held = 0
        self.taken = 0
        self.tickets = 0
        """Requests in flight that use the counter or may yet use it; they keep it in memory."""
        self.ends_s = ends_s

    @property
    def visible(self) -> int:
        """The remainder shown to the limit's owner; `left` is what this process may take of it now."""
        return self.left

    def set_amount(self, amount: int) -> None:
        """Change the limit while it counts; a negative `left` recovers as used amounts age out.

        `amount` is in the measure's unit.
        """
        self.left += amount - self.amount
        self.amount = amount

    @abstractmethod
    def roll(self, now_s: float) -> None:
        """Move on to the window of `now_s`, which is at or past `ends_s`."""

    @abstractmethod
    def untake(self, amount: int, entered_s: float, now_s: float) -> None:
        """Give back an amount taken at `entered_s` that was not used; no effect once it has aged out.

        `amount` is in the measure's unit.
        """

    @abstractmethod
    def room_s(self, amount: int, now_s: float) -> float:
        """Return the seconds until time alone frees `amount`, if no other request takes it; more than 0.

        `amount` is in the measure's unit.
        """

    def whole_s(self, now_s: float) -> float:
        """Seconds until the whole limit is free again, if no request takes any more; more than 0."""
        return self.room_s(self.amount, now_s)

    @abstractmethod
    def is_blank(self, now_s: float) -> bool:
        """Whether a new counter would have the same numbers."""


class SlotCounter(Counter):
    """Concurrent requests, which are its unit; all of the used amount is `held`."""

    __slots__ = ()

    def __init__(self, key: CounterKey, amount: int) -> None:
        super().__init__(key, amount, math.inf)

    def roll(self, now_s: float) -> None:
        """It has no window."""

    def untake(self, amount: int, entered_s: float, now_s: float) -> None:
        """Do nothing: slots are never used up permanently."""

    def room_s(self, amount: int, now_s: float) -> float:  # noqa: ARG002 - the end of a request is unknown
        return SOON_S

    def is_blank(self, now_s: float) -> bool:  # noqa: ARG002
        return not self.held


class SlidingCounter(Counter):
    """Allows at most the amount in any 60 seconds. It records the amount taken in each of the last seconds.

    `taken` is that of the current second; `_past` is the sum of the others. An amount taken at the beginning of a
    second counts for up to a second too long, never too short.
    """

    __slots__ = ("_past", "_ring", "_second")

    def __init__(self, key: CounterKey, amount: int, now_s: float) -> None:
        self._second = int(now_s)
        self._ring = [0] * _SECONDS
        self._past = 0
        super().__init__(key, amount, self._second + 1)

    def roll(self, now_s: float) -> None:
        second = int(now_s)
        self._ring[self._second % _SECONDS] = self.taken
        self._past += self.taken
        self.taken = 0
        for bygone in range(self._second + 1, min(second, self._second + _SECONDS) + 1):
            self._past -= self._ring[bygone % _SECONDS]
            self._ring[bygone % _SECONDS] = 0
        self._second = second
        self.ends_s = second + 1
        self.left = self.amount - self.held - self._past

    def untake(self, amount: int, entered_s: float, now_s: float) -> None:
        if now_s >= self.ends_s:
            self.roll(now_s)
        second = int(entered_s)
        if second >= self._second:
            self.taken -= amount
            self.left += amount
        elif second > self._second - _SECONDS:
            self._ring[second % _SECONDS] -= amount
            self._past -= amount
            self.left += amount

    def room_s(self, amount: int, now_s: float) -> float:
        freed = self.left
        for second in range(self._second - _SECONDS + 1, self._second + 1):
            freed += self._ring[second % _SECONDS] if second < self._second else self.taken
            if freed >= amount:
                return max(_LEAST_S, second + _SECONDS - now_s)
        return SOON_S

    def whole_s(self, now_s: float) -> float:
        """Held amounts count for a minute from the end of their request, which may be now."""
        if self.held or self.taken:
            second = int(now_s) if self.held else self._second
            return max(_LEAST_S, second + _SECONDS - now_s)
        return self.room_s(self.amount, now_s)

    def is_blank(self, now_s: float) -> bool:
        return not self.held and now_s >= self._second + _SECONDS


class CalendarCounter(Counter):
    """A day's or a month's amount, which resets at its end."""

    __slots__ = ("_begin_s", "_span")

    def __init__(self, key: CounterKey, span: Span, amount: int, now_s: float) -> None:
        self._span: Span = span
        self._begin_s, end_s = window(span, now_s)
        super().__init__(key, amount, end_s)

    @property
    def begin_s(self) -> int:
        return self._begin_s

    def roll(self, now_s: float) -> None:
        self._begin_s, self.ends_s = window(self._span, now_s)
        self.taken = 0
        self.left = self.amount - self.held

    def untake(self, amount: int, entered_s: float, now_s: float) -> None:
        if now_s >= self.ends_s:
            self.roll(now_s)
        if entered_s >= self._begin_s:
            self.taken -= amount
            self.left += amount

    def room_s(self, amount: int, now_s: float) -> float:  # noqa: ARG002 - all of it comes back at once
        return max(_LEAST_S, self.ends_s - now_s)

    def is_blank(self, now_s: float) -> bool:
        return not self.held and (now_s >= self.ends_s or not self.taken)


def counter_for(quota: Quota, now_s: float) -> Counter:
    """Return a new counter, which has counted nothing yet."""
    key = CounterKey.of(quota)
    if quota.measure == "concurrency" or quota.span is None:
        return SlotCounter(key, quota.amount)
    if quota.span == "minute":
        return SlidingCounter(key, quota.amount, now_s)
    return CalendarCounter(key, quota.span, quota.amount, now_s)
