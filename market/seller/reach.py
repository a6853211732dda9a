"""The way in for buyers: set by the tunnel or pull task, followed by the code that lists it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from market.seller.address import Address


@dataclass(frozen=True, slots=True)
class Reach:
    """`address` is public, None for a seller that fetches its work; while not `is_open`, buyers cannot get here.

    `why` tells the owner the reason; `version` is cloudflared's.
    """

    is_open: bool
    address: str | None = None
    why: str = ""
    version: str = ""


class Reaches:
    """The newest reach; a slow follower misses intermediate ones."""

    def __init__(self, now: Reach) -> None:
        self.now = now
        self._turn = 0
        self._changed = asyncio.Condition()

    async def tell(self, reach: Reach) -> None:
        if reach == self.now:
            return
        async with self._changed:
            self.now = reach
            self._turn += 1
            self._changed.notify_all()

    async def changes(self) -> AsyncIterator[Reach]:
        """Yield the current reach, then each change."""
        seen = -1
        while True:
            async with self._changed:
                while self._turn == seen:
                    await self._changed.wait()
                seen, reach = self._turn, self.now
            yield reach


class WayIn(Protocol):
    """A tunnel, or a seller's task that fetches its work."""

    reaches: Reaches

    async def run(self) -> None:
        """Run until cancelled."""


async def keep_way_in(way: WayIn, address: Address) -> None:
    """Keep the way in open and the address current until cancelled; then mark the seller unreachable."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(way.run(), name="way-in")
            async for reach in way.reaches.changes():
                address.put(reach.address, reach.is_open)
    finally:
        address.put(None, is_open=False)
