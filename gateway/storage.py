"""Checks whether acknowledged data can be stored: the data directory may be deleted, full or read-only."""

import asyncio
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gateway.errors import StorageUnavailable

log = structlog.get_logger(__name__)

_EVERY_S = 2.0
# A request that stores data checks again if the last check is older.
_FRESH_S = 1.0
# A slower disk counts as failed.
_LOOK_TIMEOUT_S = 30.0
_FREE_MIN_BYTES = 2**20
_PROBE = b"\0" * 4096
_REASONS = {
    errno.ENOSPC: "the disk of the data directory is full",
    errno.EDQUOT: "the quota of the data directory is used up",
    errno.EROFS: "the data directory is read-only",
    errno.ENOENT: "the data directory was removed",
}
_REPLACED = "was removed or replaced; stop the gateway, restore a backup and start it again"


class Storage:
    """Checks the data directory periodically. One event loop owns it; checks run in threads.

    `database` is the SQLite file in it, if the ledger is there: SQLite continues to write to a deleted file.
    """

    def __init__(self, folder: Path, database: Path | None) -> None:
        self._folder = folder
        self._files = {path: identity_of(path) for path in (folder, database) if path}
        self.trouble: str | None = None
        """Why data cannot be stored, for operators; None while it can."""
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def keep_looking(self) -> None:
        """Run until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(_EVERY_S)

    async def check(self) -> None:
        """Check the disk, unless another caller just did. Raises StorageUnavailable."""
        if time.monotonic() - self._looked_s > _FRESH_S:
            await self._look()
        self.refuse()

    def refuse(self) -> None:
        """Use the last check. Raises StorageUnavailable."""
        if self.trouble:
            raise StorageUnavailable(self.trouble)

    async def _look(self) -> None:
        """Run one check at a time, even if many callers wait for it."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_once(), name="data directory")
        done, _ = await asyncio.wait((self._looking,), timeout=_LOOK_TIMEOUT_S)
        if not done:
            self._note("the disk of the data directory does not answer")

    async def _look_once(self) -> None:
        self._note(await asyncio.to_thread(self._find_trouble))
        self._looked_s = time.monotonic()

    def _find_trouble(self) -> str | None:
        if any(identity_of(path) != was for path, was in self._files.items()):
            return f"the data directory or the database file in it {_REPLACED}"
        return why_unwritable(self._folder)

    def _note(self, trouble: str | None) -> None:
        before, self.trouble = self.trouble, trouble
        if trouble and trouble != before:
            log.critical("data cannot be stored", reason=trouble)
        elif before and not trouble:
            log.warning("data can be stored again")


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return the file's identity, independent of its name; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def why_unwritable(folder: Path) -> str | None:
    """Try to write a small file there; return the problem, or None if it works and some room is left."""
    try:
        if shutil.disk_usage(folder).free < _FREE_MIN_BYTES:
            return _REASONS[errno.ENOSPC]
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            if probe.write(_PROBE) < len(_PROBE):
                return _REASONS[errno.ENOSPC]
    except OSError as error:
        return reason_of(error)
    return None


def reason_of(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, f"the data directory cannot be written: {os.strerror(error.errno or 0)}")


@contextmanager
def keeping() -> Iterator[None]:
    """Convert disk errors inside the block to storage errors. Raises StorageUnavailable."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(reason_of(error)) from error
