"""Whether the cluster answers just now, and why not: what callers wait for and people read."""

import asyncio
from typing import Literal

from cluster.errors import ClusterUnavailable

Status = Literal["no_model", "waiting", "planning", "ready", "failed"]


class Readiness:
    """One status with its reason; whoever waits for it looks again at every change."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self.status: tuple[Status, str] = ("no_model", "no model was given")

    async def tell(self, status: Status, reason: str) -> None:
        async with self._changed:
            self.status = (status, reason)
            self._changed.notify_all()

    async def wait(self, timeout_s: float) -> None:
        """Raises ClusterUnavailable, with the reason, when there is no working ring in time."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.status[0] in ("ready", "failed", "no_model"))
        except TimeoutError:
            raise ClusterUnavailable(f"the cluster is not ready: {self.status[1]}") from None
        if self.status[0] != "ready":
            raise ClusterUnavailable(self.status[1])
