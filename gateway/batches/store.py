"""Batches in the database. A status that others may have changed is only changed from a known one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, delete, func, select, update
from sqlalchemy.orm import Session

from gateway.batches.batch import CANCELLABLE, ENDS, UNFINISHED, Batch, End, Status
from gateway.batches.file import StoredFile
from gateway.batches.tables import batch_table, file_table
from gateway.identity import audit
from gateway.identity.audit import Actor
from runtime.errors import Conflict, NotFound, RateLimited

# Ended batches that are kept for each user.
ROWS_PER_USER_MAX = 10_000
_FULL_RETRY_S = 60
_PRUNED_AT_ONCE = 500

_rows = batch_table.c


class BatchStore:
    """Every method is one short transaction; call them off the event loop."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session], per_user_max: int) -> None:
        self._read = read
        self._write = write
        self._per_user_max = per_user_max

    def add(self, batch: Batch) -> None:
        """Add a batch. Raises RateLimited if its owner has too many."""
        mine = select(func.count()).where(_rows.owner == batch.owner)
        with self._write() as session, session.begin():
            unfinished = session.scalar(mine.where(_rows.status.in_(UNFINISHED))) or 0
            if unfinished >= self._per_user_max:
                text = f"You have {unfinished} unfinished batches, the limit for one user. Wait for one to end."
                raise RateLimited(text, _FULL_RETRY_S)
            if (session.scalar(mine) or 0) >= ROWS_PER_USER_MAX:
                text = (
                    f"You have {ROWS_PER_USER_MAX} batches, the limit for one user. Wait for old ones to expire."
                )
                raise RateLimited(text, _FULL_RETRY_S)
            session.execute(batch_table.insert().values(asdict(batch)))

    def find(self, owner: str, batch_id: str) -> Batch:
        """Return a batch. Raises NotFound, also if it belongs to another owner."""
        with self._read() as session:
            row = session.execute(
                select(batch_table).where(_rows.id == batch_id, _rows.owner == owner)
            ).one_or_none()
        if row is None:
            raise NotFound(f"Batch {batch_id[:80]!r} not found.")
        return _of_row(row)

    def newest(self, owner: str | None, limit: int, after: str | None = None) -> list[Batch]:
        """Return an owner's newest batches, or all for None; `after` is the last id of the previous page.

        Raises NotFound.
        """
        query = select(batch_table).order_by(_rows.created_ns.desc(), _rows.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(_rows.owner == owner)
        with self._read() as session:
            if after is not None:
                whose = [] if owner is None else [_rows.owner == owner]
                at = session.execute(
                    select(_rows.created_ns, _rows.id).where(_rows.id == after, *whose)
                ).one_or_none()
                if at is None:
                    raise NotFound(f"after: batch {after[:80]!r} not found", param="after")
                earlier = (_rows.created_ns < at[0]) | ((_rows.created_ns == at[0]) & (_rows.id < at[1]))
                query = query.where(earlier)
            return [_of_row(row) for row in session.execute(query)]

    def unfinished(self, folder_id: str | None = None) -> list[Batch]:
        """Return unfinished batches of one data directory, or of all, the oldest first."""
        query = select(batch_table).where(_rows.status.in_(UNFINISHED)).order_by(_rows.created_ns)
        if folder_id is not None:
            query = query.where(_rows.folder_id == folder_id)
        with self._read() as session:
            return [_of_row(row) for row in session.execute(query)]

    def cancel(self, owner: str | None, batch_id: str, by: Actor | None = None) -> Batch:
        """Cancel a batch and return it; recorded in the audit log if an admin did it.

        Raises NotFound; Conflict for one that has ended.
        """
        query = select(batch_table).where(_rows.id == batch_id)
        with self._write() as session, session.begin():
            row = session.execute(query if owner is None else query.where(_rows.owner == owner)).one_or_none()
            if row is None:
                raise NotFound(f"Batch {batch_id[:80]!r} not found.")
            if row.status != "cancelling":
                if row.status not in CANCELLABLE:
                    raise Conflict(f"A batch with status {row.status} cannot be cancelled.")
                values = {"status": "cancelling", "cancelling_ns": time.time_ns()}
                session.execute(update(batch_table).where(_rows.id == batch_id).values(values))
                if by is not None:
                    audit.record(session, by, "batch.cancel", f"batch:{batch_id}", after={"owner": row.owner})
            return _of_row(session.execute(query).one())

    def move(self, batch_id: str, before: Status, after: Status, **values: Any) -> bool:
        """Change a batch's status and the given values; return False if its status was not `before`."""
        values |= {"status": after, f"{after}_ns": time.time_ns()}
        order = update(batch_table).where(_rows.id == batch_id, _rows.status == before).values(values)
        return self._changes_one(order)

    def note_counts(self, batch_id: str, completed: int, failed: int) -> None:
        order = update(batch_table).where(_rows.id == batch_id).values(completed=completed, failed=failed)
        self._changes_one(order)

    def end(self, batch: Batch, end: End, outputs: Sequence[StoredFile], **values: Any) -> None:
        """Write a batch's final state and its output files, in one transaction."""
        values |= {"status": end, f"{end}_ns": time.time_ns()}
        with self._write() as session, session.begin():
            known = set(
                session.scalars(select(file_table.c.id).where(file_table.c.id.in_([f.id for f in outputs])))
            )
            if new := [asdict(file) for file in outputs if file.id not in known]:
                session.execute(file_table.insert(), new)
            session.execute(update(batch_table).where(_rows.id == batch.id).values(values))

    def prune(self, before_ns: int) -> None:
        """Delete batches that ended long ago."""
        old = select(_rows.id).where(_rows.created_ns < before_ns, _rows.status.in_(ENDS)).limit(_PRUNED_AT_ONCE)
        with self._write() as session, session.begin():
            session.execute(delete(batch_table).where(_rows.id.in_(list(session.scalars(old)))))

    def _changes_one(self, order: Any) -> bool:
        with self._write() as session, session.begin():
            result: Any = session.execute(order)
            return bool(result.rowcount)


def _of_row(row: Row[Any]) -> Batch:
    return Batch(**row._mapping)
