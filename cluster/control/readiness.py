"""Whether the cluster answers now, and why not. Callers wait for it, and admins read it."""

import asyncio
from typing import Literal

from cluster.errors import ClusterUnavailable
from cluster.nodes.absences import Absences

Status = Literal["no_model", "waiting", "planning", "ready", "failed"]


class Readiness:
    """One status with its reason. Waiting tasks check it again at every change."""

    def __init__(self, absences: Absences) -> None:
        self._changed = asyncio.Condition()
        self._absences = absences
        self._current: tuple[Status, str] = ("no_model", "no model was given")

    @property
    def status(self) -> tuple[Status, str]:
        """The status and its reason. While the cluster is not ready, the reason names absent local nodes."""
        status, reason = self._current
        if status in ("ready", "no_model") or not self._absences.by_name:
            return self._current
        return status, f"{reason}; {self._absences.words}"

    async def tell(self, status: Status, reason: str) -> None:
        self._current = (status, reason)
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a working pipeline. Raise ClusterUnavailable, with the reason, if there is none in time."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.status[0] in ("ready", "failed", "no_model"))
        except TimeoutError:
            raise ClusterUnavailable(f"the cluster is not ready: {self.status[1]}") from None
        if self.status[0] != "ready":
            raise ClusterUnavailable(self.status[1])
