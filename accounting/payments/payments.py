"""Assemble all of payments: what the gateway holds, and what it runs periodically."""

import logging
from dataclasses import dataclass

from sqlalchemy import select

from accounting.payments import rules
from accounting.payments.client import Stripe
from accounting.payments.context import PaymentsContext, check_currency, check_mode
from accounting.payments.disputes import Disputes
from accounting.payments.inbox import Inbox
from accounting.payments.payers import Payers
from accounting.payments.payouts import Payouts
from accounting.payments.reconciliation import LOOKBACK_S, Reconciliation
from accounting.payments.refunds import Refunds
from accounting.payments.resumption import go_on
from accounting.payments.sellers import SellerAccounts
from accounting.payments.tables import dispute_table
from accounting.payments.terms import from_cents
from accounting.payments.topups import Topups
from accounting.payments.worker import Handler, Worker

_log = logging.getLogger(__name__)
_EVENTS_MAX = 100
_OVER = ("won", "lost", "warning_closed")
_dispute = dispute_table.c


@dataclass(frozen=True, slots=True)
class Bank:
    context: PaymentsContext

    def changed(self, payout_id: str) -> None:
        """Retrieve a payout of the platform again, and book where its money is."""
        made = self.context.stripe.retrieve("payouts", payout_id)
        check_mode(made, is_live=self.context.stripe.is_live)
        check_currency(made)
        amount_nano = from_cents(made["amount"])
        self.context.ledger.book(rules.bank_payout(payout_id, amount_nano))
        if made["status"] == "paid":
            self.context.ledger.book(rules.bank_payout_arrived(payout_id, amount_nano))
        elif made["status"] in ("failed", "canceled"):
            was_there = self.context.ledger.is_booked(f"po:{payout_id}:paid")
            self.context.ledger.book(rules.bank_payout_failed(payout_id, amount_nano, was_there=was_there))


@dataclass(frozen=True, slots=True)
class Payments:
    inbox: Inbox
    worker: Worker
    payers: Payers
    topups: Topups
    refunds: Refunds
    disputes: Disputes
    sellers: SellerAccounts
    payouts: Payouts
    reconciliation: Reconciliation

    def look_for_disputes(self) -> None:
        """Check each dispute that is open at Stripe or here, because its message may have been lost."""
        context = self.worker.context
        since = context.clock_ns() // 10**9 - LOOKBACK_S
        listed = self.stripe.list("disputes", {"created": {"gte": max(since, 0)}})
        with context.read() as session:
            here = session.scalars(select(_dispute.id).where(_dispute.status.in_(("open", "inquiry")))).all()
        there = [made["id"] for made in listed if made["status"] not in _OVER]
        go_on("dispute", dict.fromkeys([*there, *here]), self.disputes.changed)

    @property
    def stripe(self) -> Stripe:
        return self.worker.context.stripe

    def tick(self) -> bool:
        """Handle the inbox and resume stalled rows. Called every few seconds, from one thread.

        An error in one kind of work is logged, and the others continue. Return whether more of the inbox may be
        due.
        """
        worked: list[int] = []
        for step in (
            lambda: worked.append(self.worker.run(_EVENTS_MAX)),
            self.topups.resume,
            self.topups.run_auto,
            self.refunds.resume,
            self.payouts.resume,
        ):
            try:
                step()
            except Exception:  # noqa: BLE001  the task's edge: one failing kind does not stop the others
                _log.exception("%s failed", step.__qualname__)
        return worked == [_EVENTS_MAX]


def open_payments(context: PaymentsContext, inbox: Inbox, *, grace_s: float | None = None) -> Payments:
    payers, sellers, bank = Payers(context), SellerAccounts(context), Bank(context)
    topups, payouts = Topups(context, payers), Payouts(context, sellers)
    refunds, disputes = Refunds(context, topups), Disputes(context, topups)

    def payout_changed(account: str, object_id: str) -> None:
        if account:
            payouts.payout_changed(account, object_id)
        else:
            bank.changed(object_id)

    handlers: dict[str, Handler] = {
        "checkout.session.": lambda _, object_id: topups.session_changed(object_id),
        "payment_intent.": lambda _, object_id: topups.intent_changed(object_id),
        "refund.": lambda _, object_id: refunds.changed(object_id),
        "charge.dispute.": lambda _, object_id: disputes.changed(object_id),
        "transfer.": lambda _, object_id: payouts.transfer_changed(object_id),
        "payout.": payout_changed,
        "account.updated": lambda _, object_id: sellers.changed(object_id),
    }
    reconciliation = Reconciliation(context) if grace_s is None else Reconciliation(context, grace_s)
    return Payments(
        inbox=inbox,
        worker=Worker(context, handlers),
        payers=payers,
        topups=topups,
        refunds=refunds,
        disputes=disputes,
        sellers=sellers,
        payouts=payouts,
        reconciliation=reconciliation,
    )
