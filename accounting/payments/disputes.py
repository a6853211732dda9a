"""Disputes: a bank takes a payment back, the user is frozen, and the end of it is booked either way."""

import logging
from dataclasses import dataclass

from sqlalchemy import select

from accounting import chart
from accounting.ledger.balances import balance
from accounting.payments import rules
from accounting.payments.client import Object
from accounting.payments.desk import Desk, check_currency, check_mode
from accounting.payments.payers import Payers
from accounting.payments.progress import DISPUTE, advance
from accounting.payments.tables import Dispute, Topup, dispute_table, topup_table
from accounting.payments.terms import from_cents
from accounting.payments.topups import Topups
from accounting.tables import account_table, event_table, transfer_table

_log = logging.getLogger(__name__)
_topup = topup_table.c
_dispute = dispute_table.c


@dataclass(frozen=True, slots=True)
class Disputes:
    desk: Desk
    payers: Payers
    topups: Topups

    def changed(self, dispute_id: str) -> None:
        """Look at a dispute again, and book what Stripe has done about the money so far, in its order."""
        made = self.desk.stripe.retrieve("disputes", dispute_id)
        check_mode(made, is_live=self.desk.stripe.is_live)
        check_currency(made)
        topup = self.topups.of_intent(made["payment_intent"])
        if topup is None:
            return  # Of a payment that was not ours; the reconciliation sees its money.
        self._open(made, topup)
        moved = made["balance_transactions"]
        taken = next((txn for txn in moved if txn["amount"] < 0), None)
        given = next((txn for txn in moved if txn["amount"] > 0), None)
        if taken is not None:
            self._withdraw(dispute_id, topup.user_id, taken)
        if given is not None and taken is not None:
            self._reinstate(dispute_id, topup.user_id, given)
        if made["status"] in ("won", "lost"):
            self._close(dispute_id, topup.user_id, made["status"])

    def _open(self, made: Object, topup: Topup) -> None:
        now_ns = self.desk.clock_ns()
        with self.desk.write() as session, session.begin():
            if session.get(Dispute, made["id"]) is not None:
                return
            session.add(
                Dispute(
                    id=made["id"],
                    topup_id=topup.id,
                    user_id=topup.user_id,
                    amount_nano=from_cents(made["amount"]),
                    created_ns=now_ns,
                    updated_ns=now_ns,
                )
            )
        _log.warning("user %s disputes payment %s: frozen", topup.user_id, made["payment_intent"])
        self.payers.freeze(topup.user_id, f"dispute {made['id']}")

    def _withdraw(self, dispute_id: str, user_id: str, taken: Object) -> None:
        fee_nano = from_cents(taken["fee"])
        self.desk.ledger.take_back(
            user_id,
            from_cents(-taken["amount"]),
            lambda paid, owed: rules.dispute_withdrawn(dispute_id, user_id, paid, owed, fee_nano),
        )

    def _reinstate(self, dispute_id: str, user_id: str, given: Object) -> None:
        """Mirror the withdrawal: what the user still owes of it is settled, the rest are credits again."""
        if self.desk.ledger.is_booked(f"dp:{dispute_id}:reinstated"):
            return
        owed_nano = min(self._owed(dispute_id, user_id), from_cents(given["amount"]))
        paid_nano = from_cents(given["amount"]) - owed_nano
        fee_nano = from_cents(max(-given["fee"], 0))
        self.desk.ledger.book(rules.dispute_reinstated(dispute_id, user_id, paid_nano, owed_nano, fee_nano))

    def _close(self, dispute_id: str, user_id: str, status: str) -> None:
        if status == "lost" and not self.desk.ledger.is_booked(f"dp:{dispute_id}:lost"):
            self.desk.ledger.book(rules.dispute_lost(dispute_id, user_id, self._owed(dispute_id, user_id)))
        with self.desk.write() as session, session.begin():
            dispute = session.get_one(Dispute, dispute_id, with_for_update=True)
            advance(dispute, DISPUTE, status, self.desk.clock_ns())
            others = select(_dispute.id).where(_dispute.user_id == user_id, _dispute.status == "open")
            is_last = session.scalar(others.limit(1)) is None
        if status == "won" and is_last:
            self.payers.freeze(user_id, None)

    def _owed(self, dispute_id: str, user_id: str) -> int:
        """Return what of this dispute's withdrawal the user owed, and still owes."""
        account = chart.user_receivable(user_id)
        query = (
            select(transfer_table.c.amount)
            .join(event_table, event_table.c.seq == transfer_table.c.event_seq)
            .join(account_table, account_table.c.id == transfer_table.c.debit)
            .where(event_table.c.idem_key == f"dp:{dispute_id}:withdrawn", account_table.c.code == account)
        )
        with self.desk.read() as session:
            return min(session.scalar(query) or 0, balance(session, account).available_nano)
