"""What the audit log says has changed about keys, people and limits since it was last read."""

from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.identity.tables import audit_table

# Entries are numbered before they are committed: one may appear behind so many others.
_WINDOW = 64
_ENTRIES_MAX = 1000
_CONCERN_KEYS = ("key.", "person.", "quota.", "organization.")


class KeyChanges:
    """The scopes of each change, once. Whoever calls `read` sees to it that nobody else does meanwhile."""

    def __init__(self, read: Callable[[], Session]) -> None:
        self._read = read
        self._known: frozenset[int] | None = None

    def read(self) -> frozenset[str] | None:
        """The scopes of what has changed; None if anything may have."""
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
        # What was left out is not known either: the next call begins anew.
        self._known = seen if is_all else None
        if known is None or not is_all:
            return None
        return frozenset(
            row.target for row in found if row.seq not in known and row.action.startswith(_CONCERN_KEYS)
        )
