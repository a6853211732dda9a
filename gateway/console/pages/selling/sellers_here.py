"""The sellers of this marketplace: new, suspended or forfeited, with their reserves and holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import available
from accounting.tables import account_table
from gateway.console.pages.selling.desks import SHOWN_MAX, rows_of
from market.marketplace.marketplace import Marketplace
from market.marketplace.probation import Probation
from market.marketplace.tables import (
    Maturity,
    Seller,
    Withheld,
    allocation_table,
    dispute_table,
    identity_table,
    maturity_table,
    seller_table,
    withheld_table,
)

_allocation, _dispute = allocation_table.c, dispute_table.c


@dataclass(frozen=True, slots=True)
class SellerLine:
    """One seller of the marketplace, with account balances in nano-USD."""

    row: Seller
    identities: tuple[str, ...]
    jobs: int
    buyers: int
    lacking: Probation
    maturing_nano: int
    payable_nano: int
    reserve_nano: int
    owed_nano: int


def sellers_of(marketplace: Marketplace, only: str | None = None) -> list[SellerLine]:
    """Return the newest sellers, `SHOWN_MAX` at most, or only the one requested."""
    query = select(Seller).order_by(seller_table.c.registered_ns.desc()).limit(SHOWN_MAX)
    if only is not None:
        query = query.where(seller_table.c.user_id == only)
    rows = rows_of(marketplace, query)
    with marketplace.context.read() as session:
        user_ids = [row.user_id for row in rows]
        of_them = select(identity_table.c.user_id, identity_table.c.identity)
        identities = session.execute(of_them.where(identity_table.c.user_id.in_(user_ids))).all()
        trade = _trade(session, user_ids)
        amounts = available(session, [code for row in rows for code in _codes(row.user_id)])
    return [
        SellerLine(
            row,
            tuple(sorted(identity for user_id, identity in identities if user_id == row.user_id)),
            *trade.get(row.user_id, (0, 0)),
            marketplace.earnings.probation_of(row.user_id),
            *(amounts[code] for code in _codes(row.user_id)),
        )
        for row in rows
    ]


def sums(marketplace: Marketplace) -> dict[str, int]:
    """Return the totals of all sellers in nano-USD, and counts of pending items."""
    with marketplace.context.read() as session:
        withheld = session.execute(
            select(func.count(), func.coalesce(func.sum(withheld_table.c.amount_nano), 0))
        ).one()
        waiting = select(func.count()).where(maturity_table.c.status == "new")
        late = select(func.count()).where(_allocation.next_check_ns <= marketplace.context.clock_ns())
        disputed = select(func.count()).where(_dispute.status == "open")
        seller = seller_table.c
        users = session.execute(
            select(func.count(), func.count(seller.suspended_reason), func.count(seller.forfeited_ns)).select_from(
                Seller
            )
        ).one()
        return {
            "sellers": int(users[0]),
            "suspended": int(users[1]),
            "forfeited": int(users[2]),
            "maturing_nano": _stands(session, "maturing"),
            "reserve_nano": _stands(session, "reserve"),
            "withheld": int(withheld[0]),
            "withheld_nano": int(withheld[1]),
            "maturing": int(session.scalar(waiting) or 0),
            "late": int(session.scalar(late) or 0),
            "disputes": int(session.scalar(disputed) or 0),
        }


def withheld_of(marketplace: Marketplace) -> list[Withheld]:
    """Return sales that were due while the buyer's payments were disputed."""
    return rows_of(marketplace, select(Withheld).order_by(withheld_table.c.transfer_seq.desc()).limit(SHOWN_MAX))


def reserves_of(marketplace: Marketplace) -> list[Maturity]:
    """Return matured earnings of which a part is in reserve."""
    query = select(Maturity).where(maturity_table.c.status == "booked", maturity_table.c.reserve_bps > 0)
    return rows_of(marketplace, query.order_by(maturity_table.c.created_ns).limit(SHOWN_MAX))


def _trade(session: Session, user_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    query = (
        select(
            _allocation.seller_user_id,
            func.sum(_allocation.jobs),
            func.count(func.distinct(_allocation.buyer_user_id)),
        )
        .where(_allocation.seller_user_id.in_(user_ids), _allocation.drawn_nano > 0)
        .group_by(_allocation.seller_user_id)
    )
    rows: Sequence[Any] = session.execute(query).all()
    return {row[0]: (int(row[1]), int(row[2])) for row in rows}


def _stands(session: Session, name: str) -> int:
    """Return the sum of all sellers' accounts of a kind, in nano-USD."""
    account = account_table.c
    query = select(func.coalesce(func.sum(account.credits_posted - account.debits_posted), 0))
    query = query.where(account.code.startswith("seller:") & account.code.endswith(f":{name}"))
    return int(session.scalar(query) or 0)


def _codes(user_id: str) -> tuple[str, str, str, str]:
    return (
        chart.seller_maturing(user_id),
        chart.seller_payable(user_id),
        chart.seller_reserve(user_id),
        chart.seller_receivable(user_id),
    )
