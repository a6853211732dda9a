"""Know the frozen users, who may not spend until an admin has examined their payments, at hand for every request.

A user is frozen by an operator, or by a dispute that is open or lost. Each reason ends by itself. A lost dispute
freezes until an operator accepts it.
"""

from collections.abc import Callable

from sqlalchemy import ColumnElement, literal, select, true, union_all
from sqlalchemy.orm import Session

from accounting.ledger.balances import Reader
from accounting.payments.tables import dispute_table, payer_table

_payer, _dispute = payer_table.c, dispute_table.c
_FROZEN_MAX = 100_000

FREEZING = ("inquiry", "open", "lost")
"""Statuses of disputes that freeze the payer."""


def reasons(reader: Reader, user_id: str | None = None, limit: int = _FROZEN_MAX) -> dict[str, str]:
    """Return why users are frozen, by their ids. The operator's reason precedes that of a dispute."""

    def of_user(column: ColumnElement[str]) -> ColumnElement[bool]:
        return true() if user_id is None else column == user_id

    both = union_all(
        select(_payer.user_id, _payer.frozen_reason, literal(0).label("rank")).where(
            _payer.frozen_reason.is_not(None), of_user(_payer.user_id)
        ),
        select(_dispute.user_id, literal("dispute ") + _dispute.id, literal(1)).where(
            _dispute.status.in_(FREEZING), of_user(_dispute.user_id)
        ),
    )
    found: dict[str, str] = {}
    for frozen_id, why, _ in reader.execute(both.order_by("rank").limit(limit)):
        found.setdefault(frozen_id, why)
    return found


def frozen_why(reader: Reader, user_id: str) -> str | None:
    """Return why a user is frozen, as the database has it now; None if the user is not."""
    return reasons(reader, user_id).get(user_id)


class FrozenUsers:
    """Answer from memory, on any thread. `look` reads the database again."""

    def __init__(self, read: Callable[[], Session]) -> None:
        self._read = read
        self._why: dict[str, str] = {}

    def look(self) -> None:
        """Read the frozen users. Raises SQLAlchemyError, and then changes nothing."""
        with self._read() as session:
            self._why = reasons(session)

    def why(self, user_id: str) -> str | None:
        """Return why a user is frozen; None if the user is not."""
        return self._why.get(user_id)
