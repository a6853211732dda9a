"""Summarize a user's recent disputes for the rules of conduct."""

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from market.marketplace.fees import user_of
from market.marketplace.tables import DisputeRow, allocation_table, dispute_table
from market.marketplace.terms import DAY_NS
from market.protocol.audits.conduct import Conduct

SETTLED = "settled"
"""The reason of a dispute that ended because the other side has signed after all."""
_REMEMBERED_NS = 30 * DAY_NS
_row, _allocation = dispute_table.c, allocation_table.c


def conduct_of(session: Session, user_id: str, now_ns: int) -> Conduct:
    """Return the user's conduct in the last thirty days."""
    since_ns = now_ns - _REMEMBERED_NS
    is_of = or_(_row.buyer_user_id == user_id, _row.seller_user_id == user_id)
    rows = session.scalars(select(DisputeRow).where(is_of, _row.opened_ns > since_ns)).all()
    is_party = or_(_allocation.buyer_user_id == user_id, _allocation.seller_user_id == user_id)
    jobs = select(func.sum(_allocation.jobs)).where(is_party, _allocation.created_ns > since_ns)
    is_hung = [row.status == "decided" and row.loser is None and row.reason != SETTLED for row in rows]
    undecided = [row for row, hangs in zip(rows, is_hung, strict=True) if hangs]
    return Conduct(
        requests=int(session.scalar(jobs) or 0),
        open=sum(row.status == "open" and user_of(row, row.opened_by) == user_id for row in rows),
        lost=sum(row.loser is not None and user_of(row, row.loser) == user_id for row in rows),
        undecided=len(undecided),
        undecided_with=len({row.buyer_user_id + "\0" + row.seller_user_id for row in undecided}),
    )
