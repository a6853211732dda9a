"""How buyers get to this seller just now: told by whoever keeps the way open, followed by whoever lists it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from gateway.selling.address import Address


@dataclass(frozen=True, slots=True)
class Reach:
    """`address` is a public one, None for a seller that fetches its work; while not `is_open`, nobody gets here.

    `why` says the reason for that to the owner, `version` is that of cloudflared.
    """

    is_open: bool
    address: str | None = None
    why: str = ""
    version: str = ""


class Reaches:
    """The newest one; who follows slowly misses what came between."""

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
        """How it is now, and then whenever it is otherwise."""
        seen = -1
        while True:
            async with self._changed:
                while self._turn == seen:
                    await self._changed.wait()
                seen, reach = self._turn, self.now
            yield reach


class WayIn(Protocol):
    """A tunnel, or a seller's own way to fetch its work."""

    reaches: Reaches

    async def run(self) -> None:
        """Until cancelled."""


async def keep_way_in(way: WayIn, address: Address) -> None:
    """Keep the way open and the address up to date, until cancelled; then nobody gets here any more."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(way.run(), name="way-in")
            async for reach in way.reaches.changes():
                address.put(reach.address, reach.is_open)
    finally:
        address.put(None, is_open=False)
