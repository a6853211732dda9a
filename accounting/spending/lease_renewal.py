"""Represent one event of a lease in the making, and its waiters: requests that draw, ended requests to book."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from accounting.errors import InsufficientCredit, LedgerError, LedgerUnavailable
from accounting.ledger.postings import Posted, Posting, UsageRecord
from accounting.rules.held import CloudBill, Hold
from accounting.rules.parts import Share


@dataclass(frozen=True, slots=True)
class Draw:
    """A request that the free part does not cover. The future returns its hold.

    If it `grows`, the request already has a smaller part, which it keeps if this is refused.
    """

    request_id: str
    amount_nano: int
    future: "Future[Hold]"
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Capture:
    """An ended request to be booked. The bill charges at most its reservation."""

    bill: CloudBill | None
    usage: UsageRecord
    future: "Future[Posted | None]"

    @property
    def charge_nano(self) -> int:
        return self.bill.charge_nano if self.bill else 0


@dataclass(slots=True)
class LeaseRenewal:
    """One event of a lease, made and not answered yet: what it books, grants and reserves."""

    posting: Posting
    captures: list[Capture]
    draws: list[Draw]
    shares: tuple[Share, ...]
    expires_ns: int

    @property
    def accounts(self) -> set[str]:
        """The accounts from which it reserves."""
        return {share.account for share in self.shares}

    def fail(self, error: LedgerError) -> None:
        """Fail every waiting future. Some may be done already."""
        fail_draws(self.draws, error)
        fail_captures(self.captures, error)


def fail_draws(draws: Sequence[Draw], error: LedgerError) -> None:
    for draw in draws:
        if not draw.future.done():
            draw.future.set_exception(error)


def fail_captures(captures: Sequence[Capture], error: LedgerError) -> None:
    for capture in captures:
        if not capture.future.done():
            capture.future.set_exception(error)


def refuse(draw: Draw, account: str, needed_nano: int, left_nano: int) -> None:
    """Fail a draw because of too few credits. `account` is the one that may be topped up."""
    draw.future.set_exception(InsufficientCredit(account, needed_nano, max(0, left_nano)))


def tell_ended(draw: Draw) -> None:
    """Fail a draw that wants more for a request which has ended meanwhile."""
    draw.future.set_exception(LedgerUnavailable(f"{draw.request_id!r} has ended, and needs no more"))
