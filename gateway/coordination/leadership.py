"""Lead a job: claim its lease whenever it is free, and keep the lease by renewing it in time."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from gateway.coordination.coordinator import Coordinator, CoordinatorUnavailable, HeldLease

_log = logging.getLogger(__name__)

TTL_S = 10.0
_RELEASE_S = 2.0


async def _from_nothing() -> int:
    return 0


class Leadership:
    """One process's claim to a lease.

    Args:
        ttl_s: how long a silent leader keeps it, in seconds.
        highest_epoch: what the database knows of this lease (`fencing.highest_epoch`), so that a coordinator
            whose data was lost starts above it.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        ttl_s: float = TTL_S,
        highest_epoch: Callable[[], Awaitable[int]] = _from_nothing,
    ) -> None:
        self._coordinator = coordinator
        self._name = name
        self._ttl_s = ttl_s
        self._highest_epoch = highest_epoch
        self._held: HeldLease | None = None
        self._until_s = 0.0

    @property
    def lease(self) -> HeldLease | None:
        """The lease while it is certainly held. Writes under it must still pass `fencing.fence`."""
        return self._held if time.monotonic() < self._until_s else None

    async def run(self) -> None:
        """Claim and renew the lease until cancelled, then release it."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._ttl_s / 4)
        finally:
            await self._leave()

    async def _look(self) -> None:
        # Start the clock before the call, because the lease begins only when the coordinator receives it.
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._ttl_s):
                if self._held and not await self._coordinator.renew(self._held):
                    _log.warning("%s is led by another process: epoch %d has ended", self._name, self._held.epoch)
                    self._held = None
                if not self._held:
                    above = await self._highest_epoch()
                    self._held = await self._coordinator.acquire(self._name, self._ttl_s, above=above)
        except (CoordinatorUnavailable, TimeoutError) as error:
            _log.warning("cannot find out who leads %s: %s", self._name, error)
        else:
            self._until_s = began_s + self._ttl_s

    async def _leave(self) -> None:
        lease, self._held = self._held, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._coordinator.release(lease)
        except (CoordinatorUnavailable, TimeoutError):
            _log.warning("%s could not be handed over; it is free in %g s", self._name, self._ttl_s)
