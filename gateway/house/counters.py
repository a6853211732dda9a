"""The tokenizers that disputes are counted by: fetched from whoever lists them, kept in a folder."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from accounting.metering.delivered import TokenCounter
from accounting.metering.tokenizers import Pinned
from gateway.buying.errors import SellerFailed
from gateway.buying.tokenizers import Tokenizers
from gateway.market.outbound import Outbound


@dataclass(frozen=True, slots=True)
class Counters:
    """Any thread may ask. What `find` gives blocks, and counts in another process."""

    folder: Path
    tokenizers: Tokenizers
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, folder: Path, outbound: Outbound) -> "Counters":
        return cls(folder, Tokenizers(folder, outbound))

    async def fetch(self, sha256: str, base_url: str | None, needed: Iterable[str]) -> None:
        """Have a tokenizer here, if a seller at this address has it; `find` tells whether that went well.

        One is fetched at a time. Those that are `needed` still are not the first to leave for it.
        """
        if base_url is None or (self.folder / f"{sha256}.json").exists():
            return
        async with self._fetching:
            await asyncio.to_thread(self._touch, needed)
            try:
                await self.tokenizers.counting(sha256, base_url.rstrip("/"))
            except SellerFailed:
                return

    def _touch(self, needed: Iterable[str]) -> None:
        for sha256 in needed:
            with suppress(OSError):
                os.utime(self.folder / f"{sha256}.json")

    def find(self, sha256: str) -> TokenCounter | None:
        """The tokenizer with this hash, None where it is not here. It raises CountingUnavailable, too."""
        pinned = Pinned(self.folder / f"{sha256}.json", sha256)
        return self.tokenizers.aside.counter(pinned) if pinned.path.exists() else None

    def close(self) -> None:
        """Nothing is counted any more."""
        self.tokenizers.aside.close()
