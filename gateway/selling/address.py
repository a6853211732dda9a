"""Where buyers reach this seller, as its listings say; whoever keeps the way open puts it here."""

import asyncio


class Address:
    """`url` is None for a seller that asks a relay for work; while not `is_open`, nothing is listed."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.is_open = False
        self.version = 0
        self._changed = asyncio.Event()

    def put(self, url: str | None, is_open: bool = True) -> None:
        """Buyers come this way from now on; an address that is the same changes nothing."""
        if (url, is_open) == (self.url, self.is_open):
            return
        self.url, self.is_open = url, is_open
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, version: int) -> None:
        """Return once it is another one than at `version`."""
        while self.version == version:
            await self._changed.wait()
