"""Compare daily every balance transaction at Stripe with what the ledger has about the same subject.

Both sides are summed by subject (a payment, a refund, a dispute, a transfer ...). A difference that outlasts the
delay of messages is moved to `suspense`, so that `asset:stripe` equals Stripe's balance, and an alert is raised.
When the missing half comes after all, the next run moves it back.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, Select, case, exists, func, or_, select

from accounting import chart
from accounting.ledger.balances import balance
from accounting.payments import rules
from accounting.payments.client import Object
from accounting.payments.context import PaymentsContext, own_id
from accounting.payments.tables import StripeTxn, stripe_txn_table
from accounting.payments.terms import from_cents
from accounting.tables import account_table, event_table, transfer_table

_log = logging.getLogger(__name__)
_txn = stripe_txn_table.c

GRACE_S = 24 * 3600
"""Seconds after a subject's last movement during which a difference is only a message that has not arrived."""
LOOKBACK_S = 120 * 24 * 3600
"""Subjects are compared this far back, in seconds: disputes may take this long."""
_LISTED_AGAIN_S = 7 * 24 * 3600
_SECOND_NS = 10**9
_USD = "usd"


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A subject whose two sides differ. `stripe_nano` is Stripe's sum, `ledger_nano` the ledger's."""

    subject: str
    stripe_nano: int
    ledger_nano: int


@dataclass(frozen=True, slots=True)
class Report:
    """`difference_nano` is Stripe's balance less `asset:stripe` after the run, less what `waiting` explains.

    `foreign` are movements and balances in other currencies, by Stripe's names. A ledger in dollars cannot hold them,
    so an admin has to check them.
    """

    compared: int
    unmatched: tuple[Unmatched, ...]
    waiting: tuple[Unmatched, ...]
    difference_nano: int
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sides:
    """The sums of each subject: at Stripe, in the ledger, and by `suspense` (amount and number of events).

    `pending` is what the ledger holds for it: Stripe may have moved that, or may do so any day.
    """

    stripe: Mapping[str, int]
    ledger: Mapping[str, int]
    pending: Mapping[str, int]
    suspended: Mapping[str, tuple[int, int]]
    last_ns: Mapping[str, int]

    def unmatched(self) -> list[Unmatched]:
        subjects = sorted(self.stripe.keys() | self.ledger.keys())
        pairs = (Unmatched(one, self.stripe.get(one, 0), self.ledger.get(one, 0)) for one in subjects)
        return [pair for pair in pairs if pair.stripe_nano != pair.ledger_nano]

    def is_foreseen(self, pair: Unmatched) -> bool:
        """Return whether open holds explain the whole difference: the ledger waits for Stripe's answer, however
        long.
        """
        return pair.stripe_nano - pair.ledger_nano == self.pending.get(pair.subject)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    context: PaymentsContext
    grace_s: float = GRACE_S

    def run(self) -> Report:
        """Compare, move unmatched differences to suspense and matched ones back, and return what was found."""
        now_ns = self.context.clock_ns()
        since_ns = max(now_ns - LOOKBACK_S * _SECOND_NS, 0)
        foreign = self._fetch(since_ns)
        sides = self._sides(since_ns)
        too_young_ns = now_ns - int(self.grace_s * _SECOND_NS)
        unmatched: list[Unmatched] = []
        waiting: list[Unmatched] = []
        for pair in sides.unmatched():
            is_young = sides.last_ns[pair.subject] > too_young_ns
            (waiting if is_young or sides.is_foreseen(pair) else unmatched).append(pair)
        self._suspend(sides, unmatched, waiting)
        for pair in unmatched:
            _log.error(
                "%s: Stripe moved %d nano-USD, the ledger %d", pair.subject, pair.stripe_nano, pair.ledger_nano
            )
        difference_nano, foreign_funds = self._difference(waiting)
        foreign += foreign_funds
        for name in foreign:
            _log.error("%s is not in dollars, so the ledger leaves it out", name)
        compared = len(sides.stripe.keys() | sides.ledger.keys())
        return Report(compared, tuple(unmatched), tuple(waiting), difference_nano, tuple(foreign))

    def _suspend(self, sides: Sides, unmatched: list[Unmatched], waiting: list[Unmatched]) -> None:
        missing_nano = {pair.subject: pair.stripe_nano - pair.ledger_nano for pair in unmatched}
        left_alone = {pair.subject for pair in waiting}
        for subject in (missing_nano.keys() | sides.suspended.keys()) - left_alone:
            suspended_nano, events = sides.suspended.get(subject, (0, 0))
            gained_nano = missing_nano.get(subject, 0) - suspended_nano
            if gained_nano:
                self.context.ledger.book(rules.suspense(subject, events + 1, gained_nano))

    def _fetch(self, since_ns: int) -> list[str]:
        """Store new balance transactions, and book those Stripe fees that no message reported.

        Return transactions in other currencies. They are not stored, so each run reports them while Stripe lists
        them.
        """
        with self.context.read() as session:
            newest_ns = session.scalar(select(func.max(_txn.created_ns))) or 0
            # Older ones were listed when they were new. A busy account's four months would be too much for every
            # day.
            since_ns = max(since_ns, newest_ns - _LISTED_AGAIN_S * _SECOND_NS)
            known = set(session.scalars(select(_txn.id).where(_txn.created_ns >= since_ns)))
        params = {"created": {"gte": since_ns // _SECOND_NS}, "expand": ["data.source"]}
        listed = [
            txn for txn in self.context.stripe.list("balance_transactions", params) if txn["id"] not in known
        ]
        new = [txn for txn in listed if txn["currency"] == _USD]
        # Book before storing: after a crash in between, the next run repeats it, and each fee has its key.
        for txn in new:
            self._book_fee(txn)
        with self.context.write() as session, session.begin():
            session.add_all(_row(txn) for txn in new)
        return [f"{txn['id']} ({txn['currency']})" for txn in listed if txn["currency"] != _USD]

    def _book_fee(self, txn: Object) -> None:
        subject = subject_of(txn)
        if txn["type"] == "stripe_fee" and txn["net"] < 0:
            self.context.ledger.book(rules.stripe_fee(txn["id"], subject, from_cents(-txn["net"])))
        elif txn["type"] in ("charge", "payment") and self.context.ledger.is_booked(f"stripe:{subject}"):
            self.context.ledger.book(rules.stripe_fee(txn["id"], subject, from_cents(txn["fee"])))

    def _sides(self, since_ns: int) -> Sides:
        """Sum both sides of every subject with a movement since that time."""
        with self.context.read() as session:
            booked = session.execute(_booked(since_ns)).all()
            at_stripe = session.execute(_at_stripe(since_ns)).all()
            pending = {subject: int(moved_nano) for subject, moved_nano in session.execute(_pending())}
        last_ns: Counter[str] = Counter({subject: created_ns for subject, _, created_ns in at_stripe})
        ledger: Counter[str] = Counter()
        suspended: dict[str, tuple[int, int]] = {}
        for subject, kind, moved_nano, count, created_ns in booked:
            last_ns[subject] = max(last_ns[subject], created_ns if kind != "suspense" else 0)
            if kind == "suspense":
                suspended[subject] = (int(moved_nano), count)
            else:
                ledger[subject] += int(moved_nano)
        stripe = {subject: int(net_nano) for subject, net_nano, _ in at_stripe}
        return Sides(stripe, ledger, pending, suspended, last_ns)

    def _difference(self, waiting: list[Unmatched]) -> tuple[int, list[str]]:
        """Return the difference, and the balances in other currencies."""
        funds = self.context.stripe.retrieve_balance()
        lying = funds["available"] + funds["pending"]
        at_stripe = sum(money["amount"] for money in lying if money["currency"] == _USD)
        foreign = {money["currency"] for money in lying if money["currency"] != _USD and money["amount"]}
        with self.context.read() as session:
            booked_nano = balance(session, chart.ASSET_STRIPE).posted_nano
        explained_nano = sum(pair.stripe_nano - pair.ledger_nano for pair in waiting)
        return from_cents(at_stripe) - booked_nano - explained_nano, [
            f"balance ({name})" for name in sorted(foreign)
        ]


_transfer, _event = transfer_table.c, event_table.c
_account = select(account_table.c.id).where(account_table.c.code == chart.ASSET_STRIPE).scalar_subquery()
_moved = case((_transfer.debit == _account, _transfer.amount), else_=-_transfer.amount)
_on_account = or_(_transfer.debit == _account, _transfer.credit == _account)
_has_moved = _transfer.phase.in_(("single", "post"))


def _live(since_ns: int) -> CompoundSelect[Any]:
    """Select the subjects with a movement on either side since that time. Others are never summed."""
    happened = (
        select(_event.ref)
        .join(transfer_table, _transfer.event_seq == _event.seq)
        .where(_on_account, _has_moved, _event.created_ns >= since_ns, _event.kind != "suspense")
    )
    return select(_txn.subject).where(_txn.created_ns >= since_ns).union(happened)


def _at_stripe(since_ns: int) -> Select[*tuple[Any, ...]]:
    """Sum what Stripe moved for each live subject, with the time of its last movement."""
    sums = select(_txn.subject, func.sum(_txn.net_nano), func.max(_txn.created_ns))
    return sums.where(_txn.subject.in_(_live(since_ns))).group_by(_txn.subject)


def _booked(since_ns: int) -> Select[*tuple[Any, ...]]:
    """Sum what events moved on `asset:stripe`, by live subject and kind."""
    return (
        select(_event.ref, _event.kind, func.sum(_moved), func.count(), func.max(_event.created_ns))
        .join(transfer_table, _transfer.event_seq == _event.seq)
        .where(_on_account, _has_moved, _event.ref.in_(_live(since_ns)))
        .group_by(_event.ref, _event.kind)
    )


def _pending() -> Select[*tuple[Any, ...]]:
    """Sum the open holds on `asset:stripe`, by subject."""
    resolution = transfer_table.alias("resolution")
    is_resolved = exists().where(resolution.c.pending_seq == _transfer.seq)
    return (
        select(_event.ref, func.sum(_moved))
        .join(transfer_table, _transfer.event_seq == _event.seq)
        .where(_on_account, _transfer.phase == "pending", ~is_resolved)
        .group_by(_event.ref)
    )


def subject_of(txn: Object) -> str:
    """Return a balance transaction's subject, as in `ref` of our events about it."""
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
