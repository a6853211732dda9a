"""Files that callers upload, and output files of batches: content on disk, and a row for each."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import structlog
from sqlalchemy import Row, delete, func, select
from sqlalchemy.orm import Session

from gateway.batches.batch import UNFINISHED, Batch
from gateway.batches.file import Purpose, StoredFile, new_file_id
from gateway.batches.file_store import FileStore, open_private
from gateway.batches.tables import batch_table, file_table
from gateway.settings.batches import BatchesSettings
from gateway.storage import keeping
from runtime.errors import BodyTooLarge, Conflict, NotFound, RateLimited

log = structlog.get_logger(__name__)

_DAY_NS = 86_400 * 10**9
_PRUNED_AT_ONCE = 500

_rows = file_table.c


class Upload:
    """A file being written. End it with `keep` or `abandon`; before `keep` it cannot be found."""

    def __init__(self, file_store: FileStore, owner: str, bytes_max: int) -> None:
        self.id = new_file_id()
        self.size_bytes = 0
        self._file_store = file_store
        self._owner = owner
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        with keeping():
            descriptor = open_private(file_store.path(owner, self.id), os.O_WRONLY | os.O_EXCL)
        self._file = os.fdopen(descriptor, "wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Append data. Raises BodyTooLarge, StorageUnavailable."""
        with self._lock, keeping():
            if not self._file.closed:  # it may have been abandoned meanwhile
                self._write(data)

    def _write(self, data: bytes) -> None:
        if self.size_bytes + len(data) > self._bytes_max:
            text = f"The file is larger than this gateway's limit of {self._bytes_max} bytes. Split it."
            raise BodyTooLarge(text, param="file")
        self._file_store.take(self._owner, len(data))
        self.size_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Sync and close; the data is then on disk. Raises StorageUnavailable."""
        with keeping():
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        with self._lock:
            self._file.close()
            with suppress(OSError):  # If it cannot be deleted now, the next start removes it.
                self._file_store.path(self._owner, self.id).unlink(missing_ok=True)
            self._file_store.give_back(self._owner, self.size_bytes)


class FileRegistry:
    """Every method does I/O: call them off the event loop."""

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], folder: Path, bounds: BatchesSettings
    ) -> None:
        self._read = read
        self._write = write
        self._bounds = bounds
        self.file_store = FileStore(folder, bounds.disk_bytes_max, bounds.user_bytes_max)

    @property
    def folder_id(self) -> str:
        return self.file_store.folder_id

    def open(self, running: Iterable[Batch]) -> None:
        """Open the folder, before anything else. Files of unfinished batches have no row yet."""
        with self._read() as session:
            known = set(session.scalars(select(_rows.id)))
        for batch in running:
            known |= {batch.output_id, batch.error_id, batch.id}
        self.file_store.open(known)

    def begin(self, owner: str) -> Upload:
        """Begin an upload. Raises RateLimited if the owner has too many files, and StorageUnavailable."""
        with self._read() as session:
            count = session.scalar(select(func.count()).where(_rows.owner == owner)) or 0
        if count >= self._bounds.files_per_user_max:
            raise RateLimited(f"You have {count} files, the limit for one user. Delete some first.", None)
        return Upload(self.file_store, owner, self._bounds.file_bytes_max)

    def keep(self, upload: Upload, owner: str, filename: str, lasts_s: int | None) -> StoredFile:
        """Turn an upload into a file, and return it."""
        upload.close()
        file = self.describe(owner, upload.id, filename, "batch", upload.size_bytes, lasts_s)
        with self._write() as session, session.begin():
            session.execute(file_table.insert().values(asdict(file)))
        return file

    def describe(
        self, owner: str, file_id: str, filename: str, purpose: Purpose, size_bytes: int, lasts_s: int | None
    ) -> StoredFile:
        """Return a new file's row; it lasts `lasts_s`, or the maximum if that is shorter."""
        now_ns = time.time_ns()
        longest_ns = self._bounds.days_max * _DAY_NS
        expires_ns = now_ns + (longest_ns if lasts_s is None else min(longest_ns, lasts_s * 10**9))
        return StoredFile(
            id=file_id,
            owner=owner,
            folder_id=self.folder_id,
            filename=filename,
            purpose=purpose,
            size_bytes=size_bytes,
            created_ns=now_ns,
            expires_ns=expires_ns,
        )

    def find(self, owner: str, file_id: str) -> StoredFile:
        """Return a file. Raises NotFound if there is none, it belongs to another owner, or it has expired."""
        mine = (_rows.id == file_id, _rows.owner == owner, _rows.expires_ns > time.time_ns())
        with self._read() as session:
            row = session.execute(select(file_table).where(*mine)).one_or_none()
        if row is None:
            raise NotFound(f"File {file_id[:80]!r} not found.")
        return _of_row(row)

    def content(self, file: StoredFile) -> Path:
        """Return the path of a file's content. Raises Conflict if another gateway has it."""
        path = self.file_store.path(file.owner, file.id)
        if file.folder_id != self.folder_id or not path.exists():
            raise Conflict(f"The content of {file.id} is stored by another gateway. Ask the one that received it.")
        return path

    def listed(
        self, owner: str, limit: int, after: str | None, order: Literal["asc", "desc"], purpose: str | None
    ) -> list[StoredFile]:
        """Return a page of files; `after` is the last id of the previous page. Raises NotFound."""
        query = select(file_table).where(_rows.owner == owner, _rows.expires_ns > time.time_ns()).limit(limit)
        if purpose is not None:
            query = query.where(_rows.purpose == purpose)
        if after is not None:
            try:
                last = self.find(owner, after)
            except NotFound:
                raise NotFound(f"after: file {after[:80]!r} not found", param="after") from None
            at, same = _rows.created_ns, _rows.created_ns == last.created_ns
            beyond = (at < last.created_ns) | (same & (_rows.id < last.id))
            if order == "asc":
                beyond = (at > last.created_ns) | (same & (_rows.id > last.id))
            query = query.where(beyond)
        columns = (_rows.created_ns, _rows.id)
        ordered = query.order_by(*(column.asc() if order == "asc" else column.desc() for column in columns))
        with self._read() as session:
            return [_of_row(row) for row in session.execute(ordered)]

    def remove(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises NotFound; Conflict while a batch reads it."""
        file = self.find(owner, file_id)
        with self._write() as session, session.begin():
            if user := session.scalar(select(batch_table.c.id).where(_reads(file_id)).limit(1)):
                raise Conflict(f"{file_id} is the input of {user}, which has not ended. Cancel that batch first.")
            session.execute(delete(file_table).where(_rows.id == file_id))
        if file.folder_id == self.folder_id:
            self.file_store.remove(owner, file_id)

    def prune(self) -> None:
        """Delete files that have expired and are not being read."""
        in_use = select(batch_table.c.input_file_id).where(batch_table.c.status.in_(UNFINISHED))
        old = select(file_table).where(_rows.folder_id == self.folder_id, _rows.expires_ns <= time.time_ns())
        with self._write() as session, session.begin():
            query = old.where(_rows.id.not_in(in_use)).limit(_PRUNED_AT_ONCE)
            files = [_of_row(row) for row in session.execute(query)]
            session.execute(delete(file_table).where(_rows.id.in_([file.id for file in files])))
        for file in files:
            self.file_store.remove(file.owner, file.id)
        if files:
            log.info("files expired", count=len(files))


def _reads(file_id: str) -> Any:
    return (batch_table.c.input_file_id == file_id) & batch_table.c.status.in_(UNFINISHED)


def _of_row(row: Row[Any]) -> StoredFile:
    return StoredFile(**row._mapping)
