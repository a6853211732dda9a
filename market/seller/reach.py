"""The way in for buyers: set by the tunnel or pull task, followed by the code that lists it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """`address` is what listings state, None for a seller that fetches its work; while not `is_open`, buyers cannot
    get here and nothing is listed. `why` is the reason.
    """

    is_open: bool
    address: str | None = None
    why: str = ""


class Reaches:
    """The newest reach; a slow follower misses intermediate ones."""

    def __init__(self) -> None:
        self.now = Reach(False, why="nothing has been opened yet")
        self._changed = asyncio.Event()

    def tell(self, reach: Reach) -> None:
        if reach != self.now:
            self.now = reach
            self._changed.set()
            self._changed = asyncio.Event()

    async def changes(self) -> AsyncIterator[Reach]:
        """Yield the current reach, then each change."""
        while True:
            changed = self._changed
            yield self.now
            await changed.wait()
