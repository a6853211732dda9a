"""A batch's output: answers in one file, errors in another, each line written as soon as it is known.

The files also record what is done: after a crash, a request with a complete line is not asked again. Failed tries
are recorded beside them, so that another try has another request id. Each line is appended with one write, and
synced in groups.
"""

import os
import threading
import time
from collections import Counter

import msgspec
import orjson

from gateway.batches.batch import Batch
from gateway.batches.file_store import FileStore, open_private
from gateway.batches.reply import BatchReply

SYNC_EVERY_S = 0.5


class _Written(msgspec.Struct, frozen=True):
    id: str


_written = msgspec.json.Decoder(_Written)


class _AppendFile:
    """A file that only grows by complete lines."""

    def __init__(self, file_store: FileStore, owner: str, name: str) -> None:
        self._file_store = file_store
        self._owner = owner
        self._name = name
        self._path = file_store.path(owner, name)
        self._descriptor = open_private(self._path, os.O_RDWR)
        self.size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)

    def append(self, line: bytes, *, is_last_word: bool = False) -> None:
        """Append a line.

        Raises OSError and BodyTooLarge without writing anything; final errors ignore the limit.
        """
        take = self._file_store.exceed if is_last_word else self._file_store.take
        take(self._owner, len(line))
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self.size_bytes + written)
        except OSError:
            self._file_store.give_back(self._owner, len(line))
            os.ftruncate(self._descriptor, self.size_bytes)
            raise
        self.size_bytes += len(line)

    def read(self) -> list[int]:
        """Return the input lines that its lines are about; cut off an incomplete line left by a crash."""
        content_bytes = 0
        lines: list[int] = []
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or (brief := _brief(line)) is None:
                    break
                lines.append(brief)
                content_bytes += len(line)
        if content_bytes < self.size_bytes:
            os.ftruncate(self._descriptor, content_bytes)
            self._file_store.give_back(self._owner, self.size_bytes - content_bytes)
            self.size_bytes = content_bytes
        return lines

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; later operations fail."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def remove(self) -> None:
        self._file_store.remove(self._owner, self._name)


class Output:
    """A batch's files. Its methods do I/O and may run in any thread, one at a time."""

    def __init__(self, file_store: FileStore, batch: Batch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self.answers = _AppendFile(file_store, batch.owner, batch.output_id)
        self.errors = _AppendFile(file_store, batch.owner, batch.error_id)
        self._tries = _AppendFile(file_store, batch.owner, batch.id)
        self._synced_s = time.monotonic()
        self.done: set[int] = set()
        self.completed = 0
        self.failed = 0
        self.attempts: Counter[int] = Counter()
        self._recover()

    def add(self, line: int, custom_id: str, reply: BatchReply, *, is_last_word: bool = False) -> None:
        """Record the final result of a line; a final error says that it will not be asked.

        Raises OSError, and BodyTooLarge if there is no room for a line that is not a final error.
        """
        content = orjson.dumps(
            {
                "id": self._batch.line_id(line),
                "custom_id": custom_id,
                "response": reply.response,
                "error": reply.error,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        with self._lock:
            if line in self.done:
                return
            (self.answers if reply.is_good else self.errors).append(content, is_last_word=is_last_word)
            self._count(line, is_good=reply.is_good)
            self._sync_now_and_then()

    def add_try(self, line: int) -> None:
        """Record that a try of a line failed; its request id is used up."""
        with self._lock:
            self.attempts[line] += 1
            self._tries.append(b"%d\n" % line)

    def finish(self) -> None:
        """Sync everything to disk."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        with self._lock:
            for file in (self.answers, self.errors, self._tries):
                file.close()

    def tidy(self) -> None:
        """Delete files that are not needed after the end."""
        self._tries.remove()
        for file in (self.answers, self.errors):
            if not file.size_bytes:
                file.remove()

    def _recover(self) -> None:
        for file, is_good in ((self.answers, True), (self.errors, False)):
            for line in file.read():
                self._count(line, is_good=is_good)
        self.attempts.update(self._tries.read())

    def _count(self, line: int, *, is_good: bool) -> None:
        self.done.add(line)
        self.completed += is_good
        self.failed += not is_good

    def _sync_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._synced_s >= SYNC_EVERY_S:
            self._sync()
            self._synced_s = now_s

    def _sync(self) -> None:
        for file in (self.answers, self.errors, self._tries):
            file.sync()


def _brief(line: bytes) -> int | None:
    """Return the input line's number without decoding the rest; None for an incomplete line after a crash."""
    try:
        if not line.startswith(b"{"):
            return int(line)
        return int(_written.decode(line).id.rpartition("_")[2])
    except (ValueError, msgspec.DecodeError):
        return None
