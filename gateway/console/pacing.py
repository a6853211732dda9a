"""How often things are made again that take time, so that all of them together take no more than a share of it."""

import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# What was made once and never again stops counting after so many of its intervals, and no sooner than this.
_INTERVALS = 3
_KEPT_S = 60.0
_REMEMBERED = 5


class Spent:
    """Seconds of CPU that something took: in the event loop, and in threads that it had work for it."""

    def __init__(self) -> None:
        # Appended to by threads, which a sum would lose parts of.
        self._parts: list[float] = []

    @property
    def cpu_s(self) -> float:
        return sum(self._parts)

    def add(self, cpu_s: float) -> None:
        self._parts.append(cpu_s)


_spent: ContextVar[Spent | None] = ContextVar("console_spent", default=None)


class MeteredThreads(ThreadPoolExecutor):
    """Threads for `asyncio.to_thread` whose time is told to whoever is `measured`; others notice nothing."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        spent = _spent.get()
        if spent is None:
            return super().submit(fn, *args, **kwargs)

        def run() -> T:
            began_s = time.thread_time()
            try:
                return fn(*args, **kwargs)
            finally:
                spent.add(time.thread_time() - began_s)

        return super().submit(run)


class _Stepped(Awaitable[T]):
    """Runs until it waits, again and again; only the running counts."""

    def __init__(self, what: Awaitable[T], spent: Spent) -> None:
        self._what = what
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._what.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            began_s = time.thread_time()
            try:
                wanted = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._spent.add(time.thread_time() - began_s)
            try:
                given = yield wanted
                step = steps.send
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the one who waits
                given, step = error, steps.throw


async def measured(what: Awaitable[T], spent: Spent) -> T:
    """What it gives, with its CPU time added to `spent`. Raises as it does."""
    before = _spent.set(spent)
    try:
        return await _Stepped(what, spent)
    finally:
        _spent.reset(before)


@dataclass(frozen=True, slots=True)
class _Cost:
    """What making it took the last times, and how often that is wanted."""

    times_s: tuple[float, ...]
    every_s: float
    at_s: float

    @property
    def share(self) -> float:
        """Of the time. The very first takes longest, and one in many is slow: neither is how it is."""
        return median_low(self.times_s) / self.every_s if len(self.times_s) > 1 else 0.0


class Pacing:
    """Stretches all intervals alike where what is wanted would take more than `share` of the time."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._costs: dict[str, _Cost] = {}

    def note(self, what: str, took_s: float, every_s: float) -> None:
        """It was made, which took so long, and is wanted again each `every_s`."""
        before = self._costs.get(what)
        earlier_s = before.times_s[1 - _REMEMBERED :] if before else ()
        self._costs[what] = _Cost((*earlier_s, took_s), every_s, self._clock())

    def forget(self, what: str) -> None:
        """It is not made any more."""
        self._costs.pop(what, None)

    @property
    def stretch(self) -> float:
        """How many times as long as wanted intervals are to be now, at least 1."""
        now_s, stretch = self._clock(), self._needed()
        for what, cost in list(self._costs.items()):
            if now_s - cost.at_s > max(_KEPT_S, _INTERVALS * stretch * cost.every_s):
                del self._costs[what]
        return self._needed()

    def _needed(self) -> float:
        return max(1.0, sum(cost.share for cost in self._costs.values()) / self._share)
