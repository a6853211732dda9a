"""Limits that several gateways share: background tasks draw, report and return slices."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog

from gateway.limits.central import Central, CentralUnavailable, CounterStanding
from gateway.limits.clock import SteadyClock
from gateway.limits.counters import Counter, CounterKey
from gateway.limits.leased import LeasedCounter
from gateway.limits.local import Reader, begin_of, longest
from gateway.limits.lookups import Lookups
from gateway.limits.orders import Order
from gateway.limits.plans import Shortage
from gateway.limits.refusals import Refused, unknown_budget
from gateway.quota import Quota

log = structlog.get_logger(__name__)

LEASE_S = 3.0
_ROUND_EVERY_S = 0.1
_QUIET_ROUND_EVERY_S = 1.0
# Pause between exchanges while another process returns unused amounts.
_RECALL_PAUSE_S = 0.005
_LOOK_ROUND_EVERY_S = 1.0
_ORDERS_MAX = 64
_DOWN_PAUSE_S = 0.5
_ROUND_PATIENCE_S = 2.0
_CANCELLED_AGAIN_S = 0.1
# Redis keeps a process's sums for a minute after its lease; a process that restarted sooner would report less.
_REMEMBERED_S = 61.0
_CANCELLATIONS_MAX = 20


async def _all_is_booked() -> None:
    return None


class LeaseSource:
    """Owns the shared counters of this process and the tasks that keep them filled.

    `settled` returns once all requests that had ended before the call are booked, or cannot be booked.
    """

    def __init__(
        self, central: Central, read: Reader | None, settled: Callable[[], Awaitable[None]] = _all_is_booked
    ) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.is_down = False
        self._is_stopping = False
        self._wall = SteadyClock()
        self._central = central
        self._read = read
        self._counters: dict[CounterKey, LeasedCounter] = {}
        self._by_name: dict[str, LeasedCounter] = {}
        self._active: dict[CounterKey, LeasedCounter] = {}
        self._settled = settled
        self._standing = CounterStanding()
        self._answered_ms = 0
        self._is_open = True
        self._telling: asyncio.Task[None] | None = None
        self._lookups = Lookups(self._look_up, self._know)
        self._look_round_s = 0.0
        self._wake = asyncio.Event()
        self._round: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._keep_filled(), name="limit leases"))
        self._tasks.append(asyncio.create_task(self._listen(), name="limit recalls"))

    async def stop(self) -> None:
        """Stop, reporting used amounts and returning unused ones if Redis still answers."""
        self._is_stopping = True
        self._wake.set()
        await self._lookups.stop()
        await _end_all({*self._tasks[1:], *([self._telling] if self._telling else [])})
        # A cancelled call may leave its connection open; let the round end by itself.
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
        """Draw once for all waiting requests; return the refusal if Redis has refused."""
        now_s = self.clock()
        counters = [(counter, need) for counter, need in short if isinstance(counter, LeasedCounter)]
        absent = [have for have in counters if self.is_down or have[0].is_unreadable]
        if absent:
            return self._go_alone(absent, now_s)
        if not self._is_open:
            await asyncio.wait([self._round], timeout=_ROUND_PATIENCE_S)
            return None
        if unknown := [counter for counter, _ in counters if counter.is_unknown and counter.wants_ledger]:
            await self._read_up(unknown)
            return None
        refused: list[Shortage] = [(counter, need) for counter, need in counters if counter.is_refused(now_s)]
        if refused:
            return longest(refused, now_s)
        for counter, need in counters:
            counter.ask(need)
            self._active[counter.key] = counter
        if any(counter.recalling_s is not None for counter, _ in counters):
            await asyncio.sleep(_RECALL_PAUSE_S)
        self._wake.set()
        await asyncio.wait([self._round], timeout=_ROUND_PATIENCE_S)
        return None

    async def _read_up(self, counters: list[LeasedCounter]) -> None:
        """Read these counters from the ledger; those without an answer in time continue without it."""
        late = {counter.key for counter in await self._lookups.wait(counters)}
        for counter in counters:
            self._active[counter.key] = counter
            if counter.key in late:
                counter.miss_ledger()

    def _go_alone(self, counters: list[tuple[LeasedCounter, int]], now_s: float) -> Refused | None:
        for counter, _ in counters:
            if counter.key.measure == "spend":
                return unknown_budget(counter)
        short: list[Shortage] = []
        for counter, need in counters:
            counter.go_alone(now_s, self._wall(), self._standing.processes)
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
                # The task must survive any error: the next round may succeed.
                log.exception("limits not exchanged")

    async def _pause(self) -> None:
        """Wait until a request needs an exchange, or the next round is due."""
        if self.is_down:
            await asyncio.sleep(_DOWN_PAUSE_S)
        try:
            is_quiet = self._is_open and not self._active
            async with asyncio.timeout(_QUIET_ROUND_EVERY_S if is_quiet else _ROUND_EVERY_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _exchange(self) -> None:
        """Run one round: send the orders of all counters."""
        began_s = self.clock()
        orders = self._orders(began_s)
        try:
            # Send even without orders, so that the other processes know of this one.
            await self._exchange_all(orders)
            recalled = [counter.name for counter, _ in orders if (counter.recalling_s or 0.0) >= began_s]
            if recalled:
                await self._central.recall(recalled)
        except CentralUnavailable as error:
            self._is_down_now(str(error))
            return
        if self.is_down:
            log.info("limits are shared again")
        self.is_down = False

    async def _exchange_all(self, orders: list[tuple[LeasedCounter, Order]]) -> None:
        standing, last = self._standing, max(0, len(orders) - 1) // _ORDERS_MAX
        # These orders were collected after the last answer; they have all arrived once the last part has.
        told_ms = self._answered_ms
        for number in range(last + 1):
            some = orders[number * _ORDERS_MAX : (number + 1) * _ORDERS_MAX]
            part = (
                standing._replace(told_ms=told_ms) if number == last else standing._replace(has_told_again=False)
            )
            await self._exchange_some(some, part)
            if self._standing.generation != standing.generation:
                return
        self._standing = self._standing._replace(told_ms=told_ms)

    def _is_down_now(self, reason: str) -> None:
        if not self.is_down:
            log.warning("limits are not shared: Redis does not answer", reason=reason)
        self.is_down = True

    def _orders(self, now_s: float) -> list[tuple[LeasedCounter, Order]]:
        if now_s >= self._look_round_s:
            self._look_round_s = now_s + _LOOK_ROUND_EVERY_S
            # A request that failed long after its counter went quiet also gives its amount back.
            self._active.update((key, have) for key, have in self._counters.items() if not have.is_reported)
        orders = []
        for counter in list(self._active.values()):
            if order := counter.order(now_s):
                orders.append((counter, order))
            elif counter.is_blank(now_s):
                del self._active[counter.key]
        return orders

    async def _exchange_some(self, orders: list[tuple[LeasedCounter, Order]], standing: CounterStanding) -> None:
        sent_s = self.clock()
        answer = await self._central.exchange(orders, self._wall(), standing)
        self._is_open, self._answered_ms = answer.is_open, answer.at_ms
        if answer.generation != self._standing.generation:
            self._lose(answer.generation)
            return
        self._standing = self._standing._replace(processes=answer.processes)
        now_s = self.clock()
        for (counter, order), grant in zip(orders, answer.grants, strict=True):
            counter.accept(order, grant, sent_s, now_s, is_open=answer.is_open)
            # The process reads an unknown counter when a request needs it. If requests are under way that it has
            # told again, it reads at once: once they have ended, the ledger has them too, and they count twice.
            if counter.wants_ledger and (not counter.is_unknown or (answer.is_open and counter.tickets)):
                self._lookups.begin(counter)

    def _lose(self, generation: str) -> None:
        """Rebuild counters that Redis has lost: book the ended requests, then report the running ones."""
        before, self._standing = self._standing, CounterStanding(generation, self._standing.processes)
        self._wake.set()
        if not before.generation:
            return
        log.warning("limits lost in Redis: rebuilding them from the ledger", counters=len(self._counters))
        for counter in self._counters.values():
            counter.forget()
        self._active.update(self._counters)
        if self._telling:
            self._telling.cancel()
        self._telling = asyncio.create_task(self._tell_again(), name="limits told again")

    async def _tell_again(self) -> None:
        """The ledger has the requests that ended before the loss was noticed; the process reports all others."""
        await self._settled()
        self._standing = self._standing._replace(has_told_again=True)
        self._wake.set()

    async def _look_up(self, counter: Counter) -> int:
        """Read a counter's use from the ledger if Redis does not know it, or a process with a share died.

        Raises the errors of the reader.
        """
        assert isinstance(counter, LeasedCounter)
        if not self._read:
            return 0
        while True:
            generation = self._standing.generation
            if counter.is_unknown or counter.is_unreadable:
                counter.leave_to_ledger()
                if counter.taken:
                    await self._settled()
            used = await asyncio.to_thread(self._read, counter.key, begin_of(counter.key, self._wall()), None)
            if generation == self._standing.generation:
                return used
            # Redis lost its counters meanwhile: wait until the other processes have reported again.
            while not self._is_open:
                await asyncio.wait([self._round])

    def _know(self, counter: Counter, used: int) -> None:
        assert isinstance(counter, LeasedCounter)
        counter.know_ledger(used, self.clock())
        self._wake.set()

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._central.recalled()) as recalled:
                    async for names in recalled:
                        self._give_back(names)
            except CentralUnavailable as error:
                log.debug("recalls not received", reason=str(error))
            await asyncio.sleep(_DOWN_PAUSE_S)

    def _give_back(self, names: list[str]) -> None:
        for name in names:
            if counter := self._by_name.get(name):
                counter.is_recalled = True
        self._wake.set()

    def sweep(self) -> bool:
        """Drop counters with no slice in this process, once Redis knows it; returns whether there were any."""
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
    """Cancel tasks until they end: redis 8.1 takes some cancellations for its own timeout and continues."""
    for _ in range(_CANCELLATIONS_MAX):
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCELLED_AGAIN_S)
    log.warning("limit tasks not ended", tasks=[task.get_name() for task in tasks])
