"""Share revoked keys, so that every process knows them a moment later.

Entries are only ever added. No request asks the coordinator: each process has the whole list, and keeps it while
the coordinator does not answer.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import aclosing

from gateway.coordination.coordinator import Coordinator

_PREFIX = "rights/revoked/"


class RevokedKeys(AbstractSet[str]):
    """The ids of revoked keys.

    Args:
        on_change: called when another one is known.
    """

    def __init__(self, coordinator: Coordinator, on_change: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._on_change = on_change
        self._ids: frozenset[str] = frozenset()

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    async def load(self) -> None:
        """Load all ids before any request is admitted. Raises CoordinatorUnavailable."""
        found = await self._coordinator.entries(_PREFIX)
        self._ids |= {entry.key.removeprefix(_PREFIX) for entry in found}

    async def run(self) -> None:
        """Add further ids until cancelled."""
        async with aclosing(self._coordinator.watch(_PREFIX)) as changes:
            async for change in changes:
                key_id = change.key.removeprefix(_PREFIX)
                if change.value is not None and key_id not in self._ids:
                    self._ids |= {key_id}
                    self._on_change()

    async def add(self, key_id: str) -> None:
        """Publish that a key is revoked.

        Raises:
            CoordinatorUnavailable: some processes may not know it.
            EntryInvalid: it is not a key's id.
        """
        await self._coordinator.put(_PREFIX + key_id, str(time.time_ns()).encode())
        self._ids |= {key_id}
