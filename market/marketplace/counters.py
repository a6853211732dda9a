"""The tokenizers for counting in disputes: fetched from sellers that list them, kept in a folder."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from accounting.metering.delivered import TokenCounter
from accounting.metering.tokenizers import Pinned
from market.buyer.errors import SellerFailed
from market.buyer.tokenizers import Tokenizers
from market.network.outbound import Outbound


@dataclass(frozen=True, slots=True)
class Counters:
    """Thread-safe. The counters that `find` returns block, and count in another process."""

    folder: Path
    tokenizers: Tokenizers
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, folder: Path, outbound: Outbound) -> "Counters":
        return cls(folder, Tokenizers(folder, outbound))

    async def fetch(self, sha256: str, base_url: str | None, needed: Iterable[str]) -> None:
        """Fetch a tokenizer from the seller at this address, if it has it; `find` shows whether that worked.

        One is fetched at a time. Those that are still `needed` are not the first to be deleted for it.
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
        """Return the tokenizer with this hash, None if it is not here. It may also raise CountingUnavailable."""
        pinned = Pinned(self.folder / f"{sha256}.json", sha256)
        return self.tokenizers.sandbox.counter(pinned) if pinned.path.exists() else None

    def close(self) -> None:
        """Stop counting."""
        self.tokenizers.sandbox.close()
