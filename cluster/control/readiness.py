"""Whether the cluster answers now, and why not. Callers wait for it, and admins read it."""

import asyncio
from collections.abc import Callable
from typing import Literal

from cluster.errors import ClusterUnavailable
from cluster.nodes.absences import Absences

Status = Literal["no_model", "waiting", "planning", "ready", "draining", "unloaded", "failed"]

_FINAL = ("ready", "failed", "no_model")


class Readiness:
    """One status with its reason. Waiting tasks check it again at every change."""

    def __init__(self, absences: Absences) -> None:
        self._changed = asyncio.Condition()
        self._absences = absences
        self._current: tuple[Status, str] = ("no_model", "no model was given")
        self._closed = ""
        # Whether it was known once that it serves, or why not.
        self.has_settled = False

    @property
    def status(self) -> tuple[Status, str]:
        """The status and its reason. While the cluster is not ready, the reason names absent local nodes."""
        status, reason = self._current
        if self._closed and status in ("ready", "planning"):
            return "draining", self._closed
        if status in ("ready", "no_model", "unloaded") or not self._absences.by_name:
            return self._current
        return status, f"{reason}; {self._absences.words}"

    @property
    def is_closed(self) -> bool:
        """Tell whether no new answers begin."""
        return bool(self._closed)

    async def tell(self, status: Status, reason: str) -> None:
        self._current = (status, reason)
        self.has_settled = self.has_settled or status in ("ready", "failed", "unloaded")
        await self._notify()

    def close(self, reason: str) -> None:
        """Let no new answers begin until `open`."""
        self._closed = reason

    async def open(self) -> None:
        self._closed = ""
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a working pipeline. Raise ClusterUnavailable, with the reason, if there is none in time."""
        await self.wait_or(timeout_s, lambda: False)

    async def wait_or(self, timeout_s: float, is_over: Callable[[], bool], *, is_admitted: bool = False) -> None:
        """Wait for a working pipeline, or until `is_over`. An admitted request may use one that is closed to others.

        Raise ClusterUnavailable, with the reason, if there is none in time.
        """

        def now() -> Status:
            return (self._current if is_admitted else self.status)[0]

        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: is_over() or now() in _FINAL)
        except TimeoutError:
            raise ClusterUnavailable(f"the cluster is not ready: {self.status[1]}") from None
        if now() != "ready" and not is_over():
            raise ClusterUnavailable(self.status[1])

    async def settle(self, timeout_s: float) -> None:
        """Wait until it serves, or was unloaded. Raise ClusterUnavailable as `wait` does."""
        await self.wait_or(timeout_s, lambda: self.status[0] == "unloaded")
