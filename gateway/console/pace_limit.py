"""Limits how often expensive figures are recomputed, so that together they take at most a share of the time."""

import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# A figure computed once and never again stops counting after this many intervals, and at least this long.
_INTERVALS = 3
_KEPT_S = 60.0
_REMEMBERED = 5


class Spent:
    """CPU seconds of a task: in the event loop, and in threads that worked for it."""

    def __init__(self) -> None:
        # A list, because threads append to it; concurrent additions to a sum could be lost.
        self._parts: list[float] = []

    @property
    def cpu_s(self) -> float:
        return sum(self._parts)

    def add(self, cpu_s: float) -> None:
        self._parts.append(cpu_s)


_spent: ContextVar[Spent | None] = ContextVar("console_spent", default=None)


class MeteredThreads(ThreadPoolExecutor):
    """Threads for `asyncio.to_thread` that report their CPU time to a `measured` caller; others see no change."""

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
    """Drives an awaitable step by step; only the running time counts."""

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
                awaited = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._spent.add(time.thread_time() - began_s)
            try:
                given = yield awaited
                step = steps.send
            except BaseException as error:  # noqa: BLE001 - any error is passed on to the awaiting code
                given, step = error, steps.throw


async def measured(what: Awaitable[T], spent: Spent) -> T:
    """Return the awaitable's result, with its CPU time added to `spent`. Raises what it raises."""
    before = _spent.set(spent)
    try:
        return await _Stepped(what, spent)
    finally:
        _spent.reset(before)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The last durations of a computation, and its interval."""

    times_s: tuple[float, ...]
    every_s: float
    at_s: float

    @property
    def share(self) -> float:
        """Share of the time. Uses the median: the slow first run and rare slow runs are not typical."""
        return median_low(self.times_s) / self.every_s if len(self.times_s) > 1 else 0.0


class Pacing:
    """Stretches all intervals equally if the computations would take more than `share` of the time.

    `clock` gives seconds that never go back.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._costs: dict[str, _Cost] = {}

    def note(self, what: str, took_s: float, every_s: float) -> None:
        """Record one computation: it took `took_s` seconds and is repeated every `every_s` seconds."""
        before = self._costs.get(what)
        earlier_s = before.times_s[1 - _REMEMBERED :] if before else ()
        self._costs[what] = _Cost((*earlier_s, took_s), every_s, self._clock())

    def forget(self, what: str) -> None:
        """Drop a computation that is no longer made."""
        self._costs.pop(what, None)

    @property
    def stretch(self) -> float:
        """The factor, at least 1, by which intervals must be lengthened now."""
        now_s, stretch = self._clock(), self._needed()
        for what, cost in list(self._costs.items()):
            if now_s - cost.at_s > max(_KEPT_S, _INTERVALS * stretch * cost.every_s):
                del self._costs[what]
        return self._needed()

    def _needed(self) -> float:
        return max(1.0, sum(cost.share for cost in self._costs.values()) / self._share)
