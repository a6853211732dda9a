"""Track which processes are present: each one publishes its facts periodically and reads the others'."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from gateway.coordination.coordinator import Coordinator, CoordinatorUnavailable

_log = logging.getLogger(__name__)

TTL_S = 15.0
_PREFIX = "members/"
_LEAVE_S = 2.0


class Membership:
    """One process among the others.

    Args:
        name: unique among the processes; `facts` are what the others read.
        ttl_s: how long a silent process counts as present, in seconds.
        on_change: called with the name of a process that came or went.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        facts: bytes,
        ttl_s: float = TTL_S,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._coordinator = coordinator
        self._key = _PREFIX + name
        self._facts = facts
        self._ttl_s = ttl_s
        self._on_change = on_change
        self.members: dict[str, bytes] = {}
        """The latest facts by name, including this process's own."""

    async def run(self) -> None:
        """Be a member until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._announce(), name="membership told")
                tasks.create_task(self._watch(), name="membership watched")
        finally:
            await self._leave()

    async def _announce(self) -> None:
        while True:
            try:
                await self._coordinator.put(self._key, self._facts, ttl_s=self._ttl_s)
            except CoordinatorUnavailable as error:
                _log.warning("this gateway cannot announce itself: %s", error)
            await asyncio.sleep(self._ttl_s / 4)

    async def _watch(self) -> None:
        async with aclosing(self._coordinator.watch(_PREFIX)) as changes:
            async for change in changes:
                name = change.key.removeprefix(_PREFIX)
                is_news = (name in self.members) != (change.value is not None)
                if change.value is None:
                    self.members.pop(name, None)
                else:
                    self.members[name] = change.value
                if is_news:
                    self._on_change(name)

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._coordinator.delete(self._key)
        except (CoordinatorUnavailable, TimeoutError):
            pass  # The entry expires by itself.
