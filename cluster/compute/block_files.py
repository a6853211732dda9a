"""Encrypted blocks of the KV cache on a node's disk, least recently used first to go.

    FOLDER/lock            held by the one process that writes or deletes
    FOLDER/bytes           how many bytes all files may take at most, counted before they are written
    FOLDER/SPACE/NAME      magic | nonce | AES-GCM(content), whose tag covers space and name, too

All stage processes of a node share the folder. A crash leaves a block whole, or leaves a file that fails its tag.
Therefore nothing is synced. What fails its tag is deleted and counts as absent.
"""

import contextlib
import fcntl
import os
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = structlog.get_logger(__name__)

_MAGIC = b"MRKV1\n"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + _NONCE_BYTES
OVERHEAD_BYTES = _HEADER_BYTES + _TAG_BYTES
# This much of the disk stays free for others, whatever the limit.
RESERVE_BYTES = 2**30
# Where blocks must go, this share of the limit is freed at once: counting all files takes a while.
_FREED_SHARE = 1 / 16
# The blocks that wait for the disk. If it is behind, more stay in the KV cache, or are lost with their slot.
_JOBS_MAX = 4
# After an error nothing is written for this long, in seconds.
_PAUSE_S = 600.0
# A stopped process may keep the lock. Others then go on without writing.
_LOCK_S = 2.0
_LOCK_TRY_S = 0.005
_UNFINISHED = ".new"


class BlockFiles:
    """The files of one node in `folder`, at most `bytes_max` in all, under `key` [32 bytes].

    A space is what makes blocks comparable: model, precision, layers, layout. A name is that of a prefix. Both are
    hex digits. `reserve_bytes` of the disk stay free.
    """

    def __init__(self, folder: Path, key: bytes, bytes_max: int, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._folder = folder
        self._cipher = AESGCM(key)
        self._bytes_max = bytes_max
        self._reserve_bytes = reserve_bytes
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(_JOBS_MAX)
        self._writer: threading.Thread | None = None
        self._paused_until_s = 0.0
        self._has_failed = False

    def start(self) -> None:
        """Delete what a crash left behind and what exceeds the limit. Start the thread that writes."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock():
                held_bytes = self._trim(self._bytes_max)
            blocks = sum(1 for _ in self._folder.glob("*/*"))
            log.info("KV blocks on disk", blocks=blocks, mib=held_bytes >> 20, mib_max=self._bytes_max >> 20)
        except OSError as error:
            self._fail(error)
        self._writer = threading.Thread(target=self._work, name="KV blocks", daemon=True)
        self._writer.start()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for `timeout_s` seconds at most, and end the thread."""
        if self._writer:
            with contextlib.suppress(queue.Full):
                self._jobs.put(None, timeout=timeout_s)
            self._writer.join(timeout_s)

    @property
    def is_busy(self) -> bool:
        """Tell whether the disk is behind, so that `later` would refuse."""
        return self._jobs.full()

    @property
    def is_paused(self) -> bool:
        """Tell whether nothing is written for now, after an error."""
        return time.monotonic() < self._paused_until_s

    def later(self, job: Callable[[], None]) -> bool:
        """Have the thread do this. Return False if too many jobs wait."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def names(self, space: str) -> list[str]:
        """Return the names in a space, most recently used first."""
        try:
            with os.scandir(self._folder / space) as entries:
                found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries]
        except OSError:
            return []
        return [name for _, name in sorted(found, reverse=True) if not name.endswith(_UNFINISHED)]

    def read(self, space: str, name: str, size: int) -> bytearray | None:
        """Return a block's content of `size` bytes, or None if it is not there. Delete a file that is anything else."""
        path = self._folder / space / name
        try:
            is_sound = path.stat().st_size == size + OVERHEAD_BYTES
            found = path.read_bytes() if is_sound else b""
        except OSError:
            return None
        if found.startswith(_MAGIC):
            content, view = bytearray(size), memoryview(found)
            with contextlib.suppress(InvalidTag, ValueError):  # It may have been cut since.
                nonce = view[len(_MAGIC) : _HEADER_BYTES]
                self._cipher.decrypt_into(nonce, view[_HEADER_BYTES:], f"{space}/{name}".encode(), content)
                return content
        log.warning("damaged KV block deleted", block=name)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def write(self, space: str, name: str, content: bytes | bytearray, used_ns: int) -> bool:
        """Store a block that was used at `used_ns` (ns since 1970). Return False if that is not possible now."""
        size = len(content) + OVERHEAD_BYTES
        if size > self._bytes_max or self.is_paused:
            return False
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = bytearray(size)
        sealed[:_HEADER_BYTES] = _MAGIC + nonce
        into = memoryview(sealed)[_HEADER_BYTES:]
        self._cipher.encrypt_into(nonce, content, f"{space}/{name}".encode(), into)
        path = self._folder / space / name
        try:
            with self._lock():
                if not path.exists():
                    self._place(path, sealed, used_ns)
        except OSError as error:
            self._fail(error)
            return False
        return True

    def touch(self, space: str, name: str, used_ns: int) -> bool:
        """Note that a block was used at `used_ns` (ns since 1970). Return False if it is not there."""
        try:
            os.utime(self._folder / space / name, ns=(used_ns, used_ns))
        except OSError:
            return False
        return True

    def _work(self) -> None:
        while job := self._jobs.get():
            try:
                job()
            except MemoryError:  # Without it the block is computed again, no more.
                log.warning("KV block not saved", reason="out of memory")
            del job  # It holds a block.

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Be the only one that writes or deletes. Raise OSError, also if another process keeps the lock for long."""
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until_s = time.monotonic() + _LOCK_S
            while not _is_locked(descriptor):
                if time.monotonic() > until_s:
                    raise OSError(f"another process has held {self._folder / 'lock'} for {_LOCK_S:.0f} s")
                time.sleep(_LOCK_TRY_S)
            yield
        finally:
            os.close(descriptor)

    def _place(self, path: Path, sealed: bytearray, used_ns: int) -> None:
        """Make a file in one step. Raise OSError."""
        fresh = path.with_name(path.name + _UNFINISHED)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._claim(len(sealed))
        try:
            fresh.write_bytes(sealed)
            os.utime(fresh, ns=(used_ns, used_ns))
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def _claim(self, size: int) -> None:
        """Count `size` bytes before they are written; make room for them first. Raise OSError."""
        counted = self._counted()
        if counted is None or counted + size > self._bytes_max:
            counted = self._trim(max(0, min(self._bytes_max - size, int(self._bytes_max * (1 - _FREED_SHARE)))))
        if shutil.disk_usage(self._folder).free < size + self._reserve_bytes:
            raise OSError(f"less than {self._reserve_bytes >> 20} MiB of the disk would stay free")
        (self._folder / "bytes").write_text(str(counted + size))

    def _counted(self) -> int | None:
        """Return the count of all bytes; None if a crash or a full disk has left it invalid."""
        try:
            return int((self._folder / "bytes").read_text())
        except (OSError, ValueError):
            return None

    def _trim(self, bytes_max: int) -> int:
        """Delete unfinished files, then the least recently used, down to `bytes_max`. Return what is left."""
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("*/*"):
            if path.name.endswith(_UNFINISHED):
                path.unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= bytes_max:
                break
            path.unlink(missing_ok=True)
            left -= size
        (self._folder / "bytes").write_text(str(left))
        return left

    def _fail(self, error: OSError) -> None:
        """Stop writing for a while; serving goes on. The log has this once."""
        self._paused_until_s = time.monotonic() + _PAUSE_S
        with contextlib.suppress(OSError):
            (self._folder / "bytes").unlink()
        if not self._has_failed:
            self._has_failed = True
            log.warning("KV blocks not saved", reason=str(error), again_in_s=_PAUSE_S)


def _is_locked(descriptor: int) -> bool:
    """Take the lock, if it is free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def forget_all(folder: Path) -> None:
    """Delete the folder of a node that saves no blocks any more."""
    shutil.rmtree(folder, ignore_errors=True)
