"""Limits of a single gateway: exact, in this process, starting from the use recorded in the ledger."""

import asyncio
import math
import time
from collections.abc import Callable

from gateway.limits.clock import SteadyClock
from gateway.limits.counters import Counter, CounterKey, counter_for
from gateway.limits.lookups import Lookups
from gateway.limits.plans import Shortage
from gateway.limits.refusals import Refused, refusal, unknown_budget
from gateway.limits.windows import MINUTE_S, window
from gateway.quota import Quota

Reader = Callable[[CounterKey, int, int | None], int]
"""Reads a counter's use since a second from the ledger (blocking), without requests begun since a nanosecond.

Raises OSError, SQLAlchemyError, TimeoutError.
"""

# The value of a counter that has not been read yet. It stays negative after any change of the limit.
_UNREAD = -(1 << 62)
# A request begins at most this long before its counter is made.
_BEGAN_NS = 10**7


class LocalSource:
    """All counters of this process. A counter that the ledger may have use of begins empty. The first request
    fills it.

    If the ledger does not answer in time, requests and tokens count from 0. Earlier use is added once the ledger
    answers. Limits on money wait for it. `clock` gives seconds that never go back.
    """

    def __init__(self, read: Reader | None, clock: Callable[[], float] | None = None) -> None:
        self._steady = SteadyClock()
        self.clock = clock or self._steady
        self._read = read
        self._began_s = self.clock()
        self._counters: dict[CounterKey, Counter] = {}
        self._closed: dict[CounterKey, int] = {}
        """Counters that wait for the ledger, with the time since when this process counts them."""
        self._open: dict[CounterKey, int] = {}
        """The same for counters in use although the ledger has not answered yet."""
        self._lookups = Lookups(self._look_up, self._begin)

    async def stop(self) -> None:
        """Stop; requests that wait for the ledger get the error that it does not answer."""
        await self._lookups.stop()

    def counter(self, quota: Quota) -> Counter:
        key = CounterKey.of(quota)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = counter_for(quota, self.clock())
            if self._read and self._may_be_in_the_ledger(key):
                self._closed[key] = time.time_ns() - _BEGAN_NS
                counter.ends_s, counter.left = math.inf, _UNREAD
        if counter.amount != quota.amount:
            counter.set_amount(quota.amount)
        return counter

    async def refill(self, short: list[Shortage]) -> Refused | None:
        """Read counters from the ledger, once for all waiting requests; counters already read are used up."""
        closed = [counter for counter, _ in short if counter.key in self._closed]
        if not closed:
            return longest(short, self.clock())
        for counter in await self._lookups.wait(closed):
            if counter.key.measure == "spend":
                return unknown_budget(counter)
            if counter.key in self._closed:
                self._open[counter.key] = self._closed.pop(counter.key)
                counter.roll(self.clock())
        return None

    def sweep(self) -> bool:
        """Drop counters without content; returns whether there were any."""
        self._steady.correct()
        now_s = self.clock()
        needless = [have for key, have in self._counters.items() if key not in self._lookups and not have.tickets]
        blank = [have.key for have in needless if have.is_blank(now_s)]
        for key in blank:
            del self._counters[key]
            self._closed.pop(key, None)
        return bool(blank)

    async def _look_up(self, counter: Counter) -> int:
        """Return the use before this process began to count. Raises the errors of the reader."""
        assert self._read
        key = counter.key
        while True:
            # While the counter waits, the ledger has no use that this process has counted.
            counted_ns = self._open.get(key)
            used = await asyncio.to_thread(self._read, key, begin_of(key, self.clock()), counted_ns)
            if counted_ns is not None or key in self._closed:
                return used

    def _begin(self, counter: Counter, used: int) -> None:
        """Add the use that the ledger answered with."""
        is_new = self._closed.pop(counter.key, None) is not None
        self._open.pop(counter.key, None)
        now_s = self.clock()
        if is_new or now_s >= counter.ends_s:
            counter.roll(now_s)
        counter.taken += used
        counter.left -= used

    def _may_be_in_the_ledger(self, key: CounterKey) -> bool:
        if key.span is None:
            return False
        return key.span != "minute" or self.clock() < self._began_s + MINUTE_S


def longest(short: list[Shortage], now_s: float) -> Refused:
    """Return the refusal of the counter that will be short for longest."""
    room_s, counter, need = max(
        ((counter.room_s(need, now_s), counter, need) for counter, need in short), key=lambda found: found[0]
    )
    return refusal(counter, need, room_s)


def begin_of(key: CounterKey, now_s: float) -> int:
    """Since when use counts."""
    assert key.span
    return int(now_s) - MINUTE_S if key.span == "minute" else window(key.span, now_s)[0]
