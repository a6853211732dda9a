"""Tokenizers that listings pin: fetched from a seller once, checked by hash, stored in a folder."""

import asyncio
import hashlib
import os
from pathlib import Path

from accounting.metering.tokenizers import Pinned
from market.buyer.errors import SellerFailed
from market.errors import CountingUnavailable, TokenizerRefused
from market.network.outbound import Outbound, Unreachable
from market.protocol.counting.token_count import Counting
from market.token_counting.sandboxed_tokenizers import SandboxedTokenizers
from runtime.files import replace_file

TOKENIZER_BYTES_MAX = 64 * 2**20
FILES_MAX = 32
_FETCH_S = 60.0
_OK = 200


class Tokenizers:
    """Tokenizers by hash. One event loop owns it; concurrent callers share one fetch and one test."""

    def __init__(self, folder: Path, outbound: Outbound) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._outbound = outbound
        self.sandbox = SandboxedTokenizers()
        """Counts in separate processes, never in this one."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def counting(self, sha256: str, base_url: str) -> Counting:
        """Return a counter for this tokenizer; `base_url` is a seller that has it.

        Raises:
            SellerFailed: the seller does not have it, or it cannot be used.
        """
        lock = self._locks.setdefault(sha256, asyncio.Lock())
        async with lock:
            try:
                self.sandbox.check(sha256)
                path = self._folder / f"{sha256}.json"
                if not _is_there(path):
                    await self._fetch(sha256, base_url, path)
                return Counting(self.sandbox.counter(Pinned(path, sha256)))
            except TokenizerRefused as error:
                raise SellerFailed(f"its tokenizer was rejected: {error}", "no_tokenizer") from None
            except CountingUnavailable as error:
                raise SellerFailed(f"its tokenizer cannot be tested now: {error}", "uncounted") from None
            finally:
                if not lock.locked():
                    self._locks.pop(sha256, None)

    async def _fetch(self, sha256: str, base_url: str, path: Path) -> None:
        """Raises SellerFailed, TokenizerRefused, CountingUnavailable."""
        url = f"{base_url}/market/v1/tokenizers/{sha256}"
        try:
            reply = await self._outbound.ask(url, timeout_s=_FETCH_S, bytes_max=TOKENIZER_BYTES_MAX)
        except Unreachable as error:
            raise SellerFailed(f"its tokenizer cannot be fetched: {error.reason}", "no_tokenizer") from None
        if reply.status != _OK or hashlib.sha256(reply.body).hexdigest() != sha256:
            raise SellerFailed("it does not have the tokenizer that it lists", "no_tokenizer")
        # Test before storing: files in the folder are used without another test.
        await asyncio.to_thread(self.sandbox.try_out, sha256, reply.body)
        await asyncio.to_thread(self._keep, path, reply.body)

    def _keep(self, path: Path, content: bytes) -> None:
        replace_file(path, content)
        kept = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-FILES_MAX]:
            old.unlink(missing_ok=True)


def _is_there(path: Path) -> bool:
    """Return whether it is stored, and mark it as used: the least recently used are deleted first."""
    try:
        os.utime(path)
    except OSError:
        return False
    return True
