"""Files that are replaced in one step and are on disk when that returns."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes | str, mode: int = 0o600) -> None:
    """Write a file in one step: after a crash it has the old content or the new one.

    It keeps its owner where this process may give files away, and those of its access rights that are in `mode`.
    Raises OSError.
    """
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        with suppress(FileNotFoundError):
            _own_alike(file.fileno(), path.stat(), mode)
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder: only then does a new file's name survive a power cut. Raises OSError."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _own_alike(descriptor: int, old: os.stat_result, mode: int) -> None:
    fresh = os.fstat(descriptor)
    if (fresh.st_uid, fresh.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & mode)
