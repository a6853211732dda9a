"""Limits of a gateway that is alone: exact, in this process, with what the books know from before it started."""

import asyncio
import math
from collections.abc import Callable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.limits.clock import SteadyClock
from gateway.limits.counters import Counter, CounterKey, counter_for
from gateway.limits.plans import Shortage
from gateway.limits.quotas import Quota
from gateway.limits.refusals import Refused, refusal, unknown_budget
from gateway.limits.windows import MINUTE_S, window

log = structlog.get_logger(__name__)

Reader = Callable[[CounterKey, int], int]
"""What the books have of this since that second (blocking). Raises OSError, SQLAlchemyError, TimeoutError."""

READ_TIMEOUT_S = 5.0
# Books that do not answer are left alone for so long.
UNREADABLE_S = 1.0
# What a counter has that waits for the books: no change of its limit makes it something to take.
_UNREAD = -(1 << 62)


class LocalSource:
    """Every counter of this process. One of which the books may know something begins without anything left,
    and is filled when the first request asks."""

    def __init__(self, read: Reader | None, clock: Callable[[], float] | None = None) -> None:
        self._steady = SteadyClock()
        self.clock = clock or self._steady
        self._read = read
        self._began_s = self.clock()
        self._counters: dict[CounterKey, Counter] = {}
        self._unread: dict[CounterKey, float] = {}
        """Since when the books may be asked for them."""
        self._reading: dict[CounterKey, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Whoever waits for the books is told that they do not answer."""
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def counter(self, quota: Quota) -> Counter:
        key = CounterKey.of(quota)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = counter_for(quota, self.clock())
            if self._read and self._may_be_in_the_books(key):
                self._unread[key] = -math.inf
                counter.ends_s, counter.left = math.inf, _UNREAD
        if counter.amount != quota.amount:
            counter.set_amount(quota.amount)
        return counter

    async def refill(self, short: list[Shortage]) -> Refused | None:
        """Read what the books know, once for all who wait; what was read already is short because it was used."""
        unread = [counter for counter, _ in short if counter.key in self._unread]
        if not unread:
            return longest(short, self.clock())
        now_s = self.clock()
        if all(now_s >= self._unread[counter.key] for counter in unread):
            await asyncio.wait([self._reading_of(counter) for counter in unread])
        missing = next((counter for counter in unread if counter.key in self._unread), None)
        return unknown_budget(missing) if missing else None

    def sweep(self) -> bool:
        """Forget counters that say nothing; whether there were any."""
        self._steady.correct()
        now_s = self.clock()
        needless = [have for key, have in self._counters.items() if key not in self._reading and not have.tickets]
        blank = [have.key for have in needless if have.is_blank(now_s)]
        for key in blank:
            del self._counters[key]
            self._unread.pop(key, None)
        return bool(blank)

    def _reading_of(self, counter: Counter) -> asyncio.Task[None]:
        reading = self._reading.get(counter.key)
        if reading is None:
            reading = asyncio.create_task(self._look_up(counter), name="limit begins")
            self._reading[counter.key] = reading
        return reading

    async def _look_up(self, counter: Counter) -> None:
        """Begin with what the books have. Without them requests go on from nothing, and money does not."""
        assert self._read
        used: int | None = None
        try:
            used = await read_books(self._read, counter.key, begin_of(counter.key, self.clock()))
        except Exception:
            # The task's edge: whatever it met, those who wait are told, and the next may look again.
            log.exception("use before the start not read")
        finally:
            del self._reading[counter.key]
            if used is None and counter.key.measure == "spend":
                self._unread[counter.key] = self.clock() + UNREADABLE_S
            else:
                self._begin(counter, used or 0)

    def _begin(self, counter: Counter, used: int) -> None:
        del self._unread[counter.key]
        counter.roll(self.clock())
        counter.taken += used
        counter.left -= used

    def _may_be_in_the_books(self, key: CounterKey) -> bool:
        if key.span is None:
            return False
        return key.span != "minute" or self.clock() < self._began_s + MINUTE_S


def longest(short: list[Shortage], now_s: float) -> Refused:
    """The refusal of the counter that will be short for longest."""
    room_s, counter, need = max(
        ((counter.room_s(need, now_s), counter, need) for counter, need in short), key=lambda found: found[0]
    )
    return refusal(counter, need, room_s)


def begin_of(key: CounterKey, now_s: float) -> int:
    """Since when use counts."""
    assert key.span
    return int(now_s) - MINUTE_S if key.span == "minute" else window(key.span, now_s)[0]


async def read_books(read: Reader, key: CounterKey, since_s: int) -> int | None:
    """None where the books do not answer in time."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await asyncio.to_thread(read, key, since_s)
    except (OSError, TimeoutError, SQLAlchemyError) as error:
        log.warning("use before the start unknown", counter=key, reason=type(error).__name__)
        return None
