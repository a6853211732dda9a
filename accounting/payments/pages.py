"""List top-ups, refunds and payouts: newest first, a page at a time."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Mapped, Session
from sqlmodel import col

from accounting.payments.errors import PaymentNotFound
from accounting.payments.tables import Payout, Topup, TopupRefund

Row = TypeVar("Row", Topup, TopupRefund, Payout)


def newest(
    read: Callable[[], Session],
    kind: type[Row],
    owner: Mapped[str],
    user_id: str | None,
    before: str | None,
    limit: int,
) -> list[Row]:
    """Return a user's rows, or all rows.

    `before` is the last known id; PaymentNotFound is raised if it is unknown.
    """
    place = tuple_(col(kind.created_ns), col(kind.id))
    query = select(kind).order_by(col(kind.created_ns).desc(), col(kind.id).desc()).limit(limit)
    if user_id is not None:
        query = query.where(owner == user_id)
    with read() as session:
        if before is not None:
            known = session.get(kind, before)
            if known is None:
                raise PaymentNotFound(f"before: no row has the ID {before}")
            query = query.where(place < (known.created_ns, known.id))
        return list(session.scalars(query))
