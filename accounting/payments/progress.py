"""How undertakings move: a status has a rank, and whatever order messages come in, it never falls."""

from collections.abc import Mapping
from typing import Protocol

TOPUP: Mapping[str, int] = {"new": 0, "open": 1, "expired": 2, "failed": 2, "paid": 3}
"""A payment counts whenever it comes, also after the session was believed to be over."""
REFUND: Mapping[str, int] = {
    "new": 0, "held": 1, "sent": 2, "succeeded": 3, "refused": 4, "failed": 4, "returned": 5,
}  # fmt: skip
DISPUTE: Mapping[str, int] = {"inquiry": 0, "over": 1, "open": 2, "lost": 3, "forgiven": 4, "won": 5}
"""An inquiry moves no money; it ends, or becomes a dispute. A lost one an operator may let be."""
PAYOUT: Mapping[str, int] = {
    "new": 0, "held": 1, "transferred": 2, "paying": 3, "paid": 4, "refused": 5, "cancelled": 5, "reversed": 6,
}  # fmt: skip


def may_move(ranks: Mapping[str, int], old: str, new: str) -> bool:
    """True where `new` lies behind `old`."""
    return ranks[new] > ranks[old]


class Moving(Protocol):
    """A row that has come so far."""

    status: str
    updated_ns: int


def advance(row: Moving, ranks: Mapping[str, int], status: str, now_ns: int) -> bool:
    """Move a row forward; False, and nothing changed, where it is as far already."""
    if not may_move(ranks, row.status, status):
        return False
    row.status, row.updated_ns = status, now_ns
    return True
