"""The daily comparison: every balance transaction at Stripe against what the books say about the same thing.

Both sides are summed by subject (a payment, a refund, a dispute, a transfer ...). What differs for longer than
messages take is moved to `suspense`, so that `asset:stripe` is what Stripe says, and somebody is told; when the
missing half comes after all, the next run moves it back.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, case, func, or_, select

from accounting import chart
from accounting.payments import rules
from accounting.payments.client import Object
from accounting.payments.desk import Desk, own_id
from accounting.payments.tables import StripeTxn, stripe_txn_table
from accounting.payments.terms import from_cents
from accounting.tables import account_table, event_table, transfer_table

_log = logging.getLogger(__name__)
_txn = stripe_txn_table.c

GRACE_S = 24 * 3600
"""How long after the last thing that happened to a subject a difference is nothing but a message on its way."""
LOOKBACK_S = 120 * 24 * 3600
"""How far back subjects are compared, in seconds: disputes may take this long."""
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A subject whose two sides differ: `stripe_nano` by Stripe, `books_nano` by the books."""

    subject: str
    stripe_nano: int
    books_nano: int


@dataclass(frozen=True, slots=True)
class Report:
    """`difference_nano` is Stripe's balance less what is in `asset:stripe` after the run."""

    compared: int
    unmatched: tuple[Unmatched, ...]
    waiting: tuple[Unmatched, ...]
    difference_nano: int


@dataclass(frozen=True, slots=True)
class Sides:
    """What each subject moved: at Stripe, in the books, and by `suspense` (how much, and in how many events)."""

    stripe: Mapping[str, int]
    books: Mapping[str, int]
    suspended: Mapping[str, tuple[int, int]]
    last_ns: Mapping[str, int]

    def unmatched(self) -> list[Unmatched]:
        subjects = sorted(self.stripe.keys() | self.books.keys())
        pairs = (Unmatched(one, self.stripe.get(one, 0), self.books.get(one, 0)) for one in subjects)
        return [pair for pair in pairs if pair.stripe_nano != pair.books_nano]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    desk: Desk
    grace_s: float = GRACE_S

    def run(self) -> Report:
        """Compare, move what is unmatched to suspense and what is matched by now back, and say what was found."""
        now_ns = self.desk.clock_ns()
        since_ns = max(now_ns - LOOKBACK_S * _SECOND_NS, 0)
        self._fetch(since_ns)
        sides = self._sides(since_ns)
        too_young_ns = now_ns - int(self.grace_s * _SECOND_NS)
        unmatched: list[Unmatched] = []
        waiting: list[Unmatched] = []
        for pair in sides.unmatched():
            (waiting if sides.last_ns[pair.subject] > too_young_ns else unmatched).append(pair)
        self._suspend(sides, unmatched, waiting)
        for pair in unmatched:
            _log.error(
                "%s: Stripe moved %d nano-USD, the books %d", pair.subject, pair.stripe_nano, pair.books_nano
            )
        compared = len(sides.stripe.keys() | sides.books.keys())
        return Report(compared, tuple(unmatched), tuple(waiting), self._difference())

    def _suspend(self, sides: Sides, unmatched: list[Unmatched], waiting: list[Unmatched]) -> None:
        wanted = {pair.subject: pair.stripe_nano - pair.books_nano for pair in unmatched}
        left_alone = {pair.subject for pair in waiting}
        for subject in (wanted.keys() | sides.suspended.keys()) - left_alone:
            suspended_nano, events = sides.suspended.get(subject, (0, 0))
            gained_nano = wanted.get(subject, 0) - suspended_nano
            if gained_nano:
                self.desk.ledger.book(rules.suspense(subject, events + 1, gained_nano))

    def _fetch(self, since_ns: int) -> None:
        """Keep the balance transactions that are new, and book Stripe's fees that no message told of."""
        with self.desk.read() as session:
            known = set(session.scalars(select(_txn.id).where(_txn.created_ns >= since_ns)))
        params = {"created": {"gte": since_ns // _SECOND_NS}, "expand": ["data.source"]}
        new = [txn for txn in self.desk.stripe.list("balance_transactions", params) if txn["id"] not in known]
        with self.desk.write() as session, session.begin():
            session.add_all(_row(txn) for txn in new)
        for txn in new:
            self._book_fee(txn)

    def _book_fee(self, txn: Object) -> None:
        subject = subject_of(txn)
        if txn["type"] == "stripe_fee" and txn["net"] < 0:
            self.desk.ledger.book(rules.stripe_fee(txn["id"], subject, from_cents(-txn["net"])))
        elif txn["type"] in ("charge", "payment") and self.desk.ledger.is_booked(f"stripe:{subject}"):
            self.desk.ledger.book(rules.stripe_fee(txn["id"], subject, from_cents(txn["fee"])))

    def _sides(self, since_ns: int) -> Sides:
        """Sum both sides of every subject of which anything happened since then."""
        with self.desk.read() as session:
            booked, at_stripe = session.execute(_booked()).all(), session.execute(_AT_STRIPE).all()
        last_ns: Counter[str] = Counter({subject: created_ns for subject, _, created_ns in at_stripe})
        books: Counter[str] = Counter()
        suspended: dict[str, tuple[int, int]] = {}
        for subject, kind, moved_nano, count, created_ns in booked:
            last_ns[subject] = max(last_ns[subject], created_ns if kind != "suspense" else 0)
            if kind == "suspense":
                suspended[subject] = (int(moved_nano), count)
            else:
                books[subject] += int(moved_nano)
        live = {subject for subject, at_ns in last_ns.items() if at_ns >= since_ns}
        return Sides(
            stripe={subject: int(net_nano) for subject, net_nano, _ in at_stripe if subject in live},
            books={subject: moved_nano for subject, moved_nano in books.items() if subject in live},
            suspended={subject: moves for subject, moves in suspended.items() if subject in live},
            last_ns=last_ns,
        )

    def _difference(self) -> int:
        funds = self.desk.stripe.retrieve_balance()
        at_stripe = sum(money["amount"] for money in funds["available"] + funds["pending"])
        return from_cents(at_stripe) - self.desk.ledger.available(chart.ASSET_STRIPE)


_AT_STRIPE = select(_txn.subject, func.sum(_txn.net_nano), func.max(_txn.created_ns)).group_by(_txn.subject)


def _booked() -> Select[*tuple[Any, ...]]:
    """Sum what events moved on `asset:stripe`, by what they are about and what kind they are."""
    account = select(account_table.c.id).where(account_table.c.code == chart.ASSET_STRIPE).scalar_subquery()
    transfer, event = transfer_table.c, event_table.c
    moved = case((transfer.debit == account, transfer.amount), else_=-transfer.amount)
    return (
        select(event.ref, event.kind, func.sum(moved), func.count(), func.max(event.created_ns))
        .join(transfer_table, transfer.event_seq == event.seq)
        .where(or_(transfer.debit == account, transfer.credit == account))
        .where(transfer.phase.in_(("single", "post")))
        .group_by(event.ref, event.kind)
    )


def subject_of(txn: Object) -> str:
    """Return what a balance transaction is about, as `ref` of our events about it says it."""
    source = txn["source"]
    if not isinstance(source, dict):
        return str(source or txn["id"])
    match source["object"]:
        case "charge":
            return str(source.get("payment_intent") or source["id"])
        case "refund" if own_id(source, "refund-"):
            return f"refund-{own_id(source, 'refund-')}"
        case "transfer" if own_id(source, "payout-"):
            return f"payout-{own_id(source, 'payout-')}"
        case _:
            return str(source["id"])


def _row(txn: Object) -> StripeTxn:
    return StripeTxn(
        id=txn["id"],
        kind=txn["type"],
        subject=subject_of(txn),
        net_nano=from_cents(txn["net"]),
        created_ns=txn["created"] * _SECOND_NS,
    )
