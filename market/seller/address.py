"""The address where buyers reach this seller, as its listings state it; the tunnel or pull task sets it."""

import asyncio


class Address:
    """`url` is None for a seller that asks a relay for work; while not `is_open`, nothing is listed."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.is_open = False
        self.version = 0
        self._changed = asyncio.Event()

    def put(self, url: str | None, is_open: bool = True) -> None:
        """Set the buyers' way in; an unchanged address changes nothing."""
        if (url, is_open) == (self.url, self.is_open):
            return
        self.url, self.is_open = url, is_open
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, version: int) -> None:
        """Return once the address differs from the one at `version`."""
        while self.version == version:
            await self._changed.wait()
