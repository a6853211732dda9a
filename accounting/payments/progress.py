"""Define the progress of payments: a status has a rank, and in any order of messages the rank never falls."""

from collections.abc import Mapping
from typing import Protocol

TOPUP: Mapping[str, int] = {"new": 0, "open": 1, "expired": 2, "failed": 2, "paid": 3}
"""A payment counts whenever it comes, even after its session seemed to be over."""
REFUND: Mapping[str, int] = {
    "new": 0, "held": 1, "sent": 2, "succeeded": 3, "refused": 4, "failed": 4, "returned": 5,
}  # fmt: skip
DISPUTE: Mapping[str, int] = {"inquiry": 0, "over": 1, "open": 2, "lost": 3, "forgiven": 4, "won": 5}
"""An inquiry moves no money; it ends or becomes a dispute. An operator may accept a lost dispute."""
PAYOUT: Mapping[str, int] = {
    "new": 0, "held": 1, "transferred": 2, "paying": 3, "paid": 4, "refused": 5, "cancelled": 5, "reversed": 6,
}  # fmt: skip


def may_move(ranks: Mapping[str, int], old: str, new: str) -> bool:
    """Return whether `new` has a higher rank than `old`."""
    return ranks[new] > ranks[old]


class Moving(Protocol):
    """A row with a status."""

    status: str
    updated_ns: int


def advance(row: Moving, ranks: Mapping[str, int], status: str, now_ns: int) -> bool:
    """Move a row forward. Return False, and change nothing, if it is already as far."""
    if not may_move(ranks, row.status, status):
        return False
    row.status, row.updated_ns = status, now_ns
    return True
