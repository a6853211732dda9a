"""Limits that several gateways share: slices are drawn, reported and given back behind the requests' backs."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import structlog

from gateway.limits.central import Central, CentralUnavailable
from gateway.limits.clock import SteadyClock
from gateway.limits.counters import CounterKey
from gateway.limits.leased import LeasedCounter, Order
from gateway.limits.local import Reader, begin_of, longest, read_books
from gateway.limits.plans import Shortage
from gateway.limits.quotas import Quota
from gateway.limits.refusals import Refused, unknown_budget

log = structlog.get_logger(__name__)

LEASE_S = 3.0
_ROUND_EVERY_S = 0.1
_QUIET_ROUND_EVERY_S = 1.0
# While another process gives back what it does not use, its giver is asked again so often.
_RECALL_PAUSE_S = 0.005
_LOOK_ROUND_EVERY_S = 1.0
_ORDERS_MAX = 64
_DOWN_PAUSE_S = 0.5
_ROUND_PATIENCE_S = 2.0
_CANCELLED_AGAIN_S = 0.1
# Redis keeps a process's sums for a minute after its lease; one that began anew before then would say less.
_REMEMBERED_S = 61.0
_CANCELLATIONS_MAX = 20


class LeaseSource:
    """Owns the shared counters of this process and the two tasks that keep them filled."""

    def __init__(self, central: Central, read: Reader | None) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.is_down = False
        self._is_stopping = False
        self._wall = SteadyClock()
        self._central = central
        self._read = read
        self._counters: dict[CounterKey, LeasedCounter] = {}
        self._by_name: dict[str, LeasedCounter] = {}
        self._active: dict[CounterKey, LeasedCounter] = {}
        self._processes = 1
        self._look_round_s = 0.0
        self._wake = asyncio.Event()
        self._round: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading: dict[CounterKey, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._keep_filled(), name="limit leases"))
        self._tasks.append(asyncio.create_task(self._listen(), name="limit recalls"))

    async def stop(self) -> None:
        """What was used is reported, and what was not is given back, where somebody still listens."""
        self._is_stopping = True
        self._wake.set()
        await _end_all({*self._tasks[1:], *self._reading.values()})
        # A call that is cut off may leave its connection open; a round ends by itself.
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=_ROUND_PATIENCE_S)
            await _end_all({*self._tasks[:1]})
        if not self.is_down:
            for counter in self._active.values():
                counter.is_recalled = True
            await self._exchange()
        await self._central.close()

    def counter(self, quota: Quota) -> LeasedCounter:
        key = CounterKey.of(quota)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = LeasedCounter(quota, self._central.name(key))
            self._by_name[counter.name] = counter
        if counter.amount != quota.amount:
            counter.set_amount(quota.amount)
        return counter

    async def refill(self, short: list[Shortage]) -> Refused | None:
        """Draw once, together with everybody who waits; refuse what those who know have refused."""
        now_s = self.clock()
        counters = [(counter, need) for counter, need in short if isinstance(counter, LeasedCounter)]
        absent = [have for have in counters if self.is_down or have[0].is_unreadable(now_s)]
        if absent:
            return self._go_alone(absent, now_s)
        refused: list[Shortage] = [(counter, need) for counter, need in counters if counter.is_refused(now_s)]
        if refused:
            return longest(refused, now_s)
        for counter, need in counters:
            counter.ask(need)
            self._active[counter.key] = counter
        if any(counter.recalling_s is not None for counter, _ in counters):
            await asyncio.sleep(_RECALL_PAUSE_S)
        self._wake.set()
        await self._wait(counters)
        return None

    async def _wait(self, counters: list[tuple[LeasedCounter, int]]) -> None:
        """For the books where they must be read first, else for the next round."""
        reading = [task for counter, _ in counters if (task := self._reading.get(counter.key))]
        await asyncio.wait(reading or [self._round], timeout=_ROUND_PATIENCE_S)

    def _go_alone(self, counters: list[tuple[LeasedCounter, int]], now_s: float) -> Refused | None:
        for counter, _ in counters:
            if counter.key.measure == "spend":
                return unknown_budget(counter)
        short: list[Shortage] = []
        for counter, need in counters:
            counter.go_alone(now_s, self._wall(), self._processes)
            self._active[counter.key] = counter
            if counter.left < need:
                short.append((counter, need))
        return longest(short, now_s) if short else None

    async def _keep_filled(self) -> None:
        while not self._is_stopping:
            try:
                await self._pause()
                waiting, self._round = self._round, asyncio.get_running_loop().create_future()
                try:
                    await self._exchange()
                finally:
                    waiting.set_result(None)
            except Exception:
                # The task's edge: whatever one round meets, the next may not.
                log.exception("limits not exchanged")

    async def _pause(self) -> None:
        """Until somebody waits, or it is time for the next round anyway."""
        if self.is_down:
            await asyncio.sleep(_DOWN_PAUSE_S)
        try:
            async with asyncio.timeout(_ROUND_EVERY_S if self._active else _QUIET_ROUND_EVERY_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _exchange(self) -> None:
        """One round: everything that there is to say of every counter."""
        began_s = self.clock()
        orders = self._orders(began_s)
        try:
            # Said even when there is nothing to say: that is how the others know of this process.
            for start in range(0, max(1, len(orders)), _ORDERS_MAX):
                await self._exchange_some(orders[start : start + _ORDERS_MAX])
            recalled = [counter.name for counter, _ in orders if (counter.recalling_s or 0.0) >= began_s]
            if recalled:
                await self._central.recall(recalled)
        except CentralUnavailable as error:
            self._is_down_now(str(error))
            return
        if self.is_down:
            log.info("limits are shared again")
        self.is_down = False

    def _is_down_now(self, reason: str) -> None:
        if not self.is_down:
            log.warning("limits are not shared: Redis does not answer", reason=reason)
        self.is_down = True

    def _orders(self, now_s: float) -> list[tuple[LeasedCounter, Order]]:
        if now_s >= self._look_round_s:
            self._look_round_s = now_s + _LOOK_ROUND_EVERY_S
            # A request that failed long after its counter went quiet gives back, too.
            self._active.update((key, have) for key, have in self._counters.items() if not have.is_told)
        orders = []
        for counter in list(self._active.values()):
            if order := counter.order(now_s):
                orders.append((counter, order))
            elif counter.is_blank(now_s):
                del self._active[counter.key]
        return orders

    async def _exchange_some(self, orders: list[tuple[LeasedCounter, Order]]) -> None:
        sent_s = self.clock()
        self._processes, grants = await self._central.exchange(orders, self._wall())
        now_s = self.clock()
        for (counter, order), grant in zip(orders, grants, strict=True):
            counter.accept(order, grant, sent_s, now_s)
            if counter.wants_books and counter.key not in self._reading:
                self._reading[counter.key] = asyncio.create_task(self._look_up(counter), name=counter.name)

    async def _look_up(self, counter: LeasedCounter) -> None:
        """What the books know of a counter that Redis does not, or of which a process died that had a part."""
        used = None if self._read else 0
        try:
            if self._read:
                used = await read_books(self._read, counter.key, begin_of(counter.key, self._wall()))
        except Exception:
            # The task's edge: whatever it met, those who wait are told, and the next may look again.
            log.exception("use before the start not read")
        finally:
            del self._reading[counter.key]
            if used is None:
                counter.miss_books(self.clock())
            else:
                counter.books, counter.wants_books = used, False
            self._wake.set()

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._central.recalled()) as recalled:
                    async for names in recalled:
                        self._give_back(names)
            except CentralUnavailable as error:
                log.debug("recalls not heard", reason=str(error))
            await asyncio.sleep(_DOWN_PAUSE_S)

    def _give_back(self, names: list[str]) -> None:
        for name in names:
            if counter := self._by_name.get(name):
                counter.is_recalled = True
        self._wake.set()

    def sweep(self) -> bool:
        """Forget counters of which this process has nothing, once Redis knows it; whether there were any."""
        self._wall.correct()
        if self.is_down:
            return False
        now_s = self.clock()
        quiet = [have for key, have in self._counters.items() if key not in self._active and not have.tickets]
        blank = [have for have in quiet if have.is_blank(now_s - _REMEMBERED_S)]
        for counter in blank:
            del self._counters[counter.key]
            del self._by_name[counter.name]
        return bool(blank)


async def _end_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancelled until they end: redis 8.1 takes some cancellations for a timeout of its own, and goes on."""
    for _ in range(_CANCELLATIONS_MAX):
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCELLED_AGAIN_S)
    log.warning("limit tasks not ended", tasks=[task.get_name() for task in tasks])
