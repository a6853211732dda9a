"""The gate of one deployment: requests that it answers, requests that wait for it, and when it was last of use."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from cluster.control.readiness import Readiness


class AdmittedRequest:
    """One admitted request. A deployment that is stopped before its end sets `is_over`."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class RequestGate:
    """Admits requests while the deployment is ready and open. `changed` wakes the task that loads and unloads.

    Times are in seconds of `clock`.
    """

    def __init__(self, readiness: Readiness, clock: Callable[[], float] = time.monotonic) -> None:
        self._readiness = readiness
        self.clock = clock
        self.changed: Callable[[], None] = lambda: None
        # What answers under this name from now on: requests that wait here go there.
        self.successor: Any = None
        self._turns: set[AdmittedRequest] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._waiting: list[float] = []
        self.last_used_s: float | None = None
        self.loaded_s: float | None = None
        # The time that the last load took, in seconds.
        self.load_s: float | None = None
        self._is_loading = False
        self._began_s: float | None = None

    @property
    def running(self) -> int:
        """The number of answers in progress."""
        return len(self._turns)

    @property
    def waiting(self) -> int:
        """The number of requests that wait to be admitted."""
        return len(self._waiting)

    @property
    def waits_since_s(self) -> float | None:
        """When the oldest waiting request began to wait; None if none waits."""
        return min(self._waiting, default=None)

    @property
    def of_use_s(self) -> float:
        """When it last answered or was loaded; 0 if never."""
        return max(self.last_used_s or 0.0, self.loaded_s or 0.0)

    async def admit(self, timeout_s: float) -> AdmittedRequest | None:
        """Wait until the deployment can answer, and begin an answer; None if its successor should.

        Raise ClusterUnavailable, with the reason, if it cannot answer in time.
        """
        if self.successor is None and self._readiness.status[0] != "ready":
            since_s = self.clock()
            self._waiting.append(since_s)
            self.changed()
            try:
                await self._readiness.wait_or(timeout_s, lambda: self.successor is not None)
            finally:
                self._waiting.remove(since_s)
                self.changed()
        # Nothing is awaited since the check: what unloads an idle deployment sees this answer.
        if self.successor is not None:
            return None
        turn = AdmittedRequest()
        self._turns.add(turn)
        self._is_idle.clear()
        return turn

    def finish(self, turn: AdmittedRequest) -> None:
        """Note that an admitted request has ended, however it did."""
        self._turns.discard(turn)
        self.last_used_s = self.clock()
        if not self._turns:
            self._is_idle.set()
            self.changed()

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no answer is in progress, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    def end_all(self) -> None:
        """Have the answers in progress end as soon as they lose their process."""
        for turn in self._turns:
            turn.is_over = True

    def expect_load(self) -> None:
        """Note that it is to be loaded. What repairs a pipeline later is no load."""
        self._is_loading = True

    def note_loading(self) -> None:
        """Note that machines begin to load it, if they do."""
        if self._is_loading:
            self._began_s = self.clock()

    def note_loaded(self) -> None:
        """Note that it serves."""
        self.loaded_s = self.clock()
        if self._is_loading and self._began_s is not None:
            self.load_s = self.loaded_s - self._began_s
        self._is_loading = False
        self.changed()
