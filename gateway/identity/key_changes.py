"""Changes to keys, users and limits in the audit log since the last read."""

from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.identity.tables import audit_table
from runtime.database import no_commits

# Entries are numbered before they are committed: one may appear after up to this many later ones.
_WINDOW = 64
_ENTRIES_MAX = 1000
_CONCERN_KEYS = ("key.", "user.", "quota.", "organization.")


class KeyChanges:
    """Reports the scopes of each change once. The caller of `read` ensures that no other call runs meanwhile.

    `commit` is that of `runtime.database.Commits`: the log is read after a commit only.
    """

    def __init__(self, read: Callable[[], Session], commit: Callable[[], int | None] = no_commits) -> None:
        self._read = read
        self._commit = commit
        self._known: frozenset[int] | None = None
        self._read_at: int | None = None

    def read(self) -> frozenset[str] | None:
        """Return the scopes that have changed; None if any of them may have."""
        commit = self._commit()
        if commit is not None and commit == self._read_at:
            return frozenset()
        column = audit_table.c
        with self._read() as session:
            if self._known is None:
                after = (session.scalar(select(func.max(column.seq))) or 0) - _WINDOW
            else:
                after = max(self._known, default=0) - _WINDOW
            query = select(column.seq, column.action, column.target).where(column.seq > after)
            found = session.execute(query.order_by(column.seq).limit(_ENTRIES_MAX)).all()
        known, seen = self._known, frozenset(row.seq for row in found)
        is_all = len(found) < _ENTRIES_MAX
        # Entries past the limit were not read, so the next call starts over.
        self._known = seen if is_all else None
        self._read_at = commit if is_all else None
        if known is None or not is_all:
            return None
        return frozenset(
            row.target for row in found if row.seq not in known and row.action.startswith(_CONCERN_KEYS)
        )
