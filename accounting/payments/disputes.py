"""Handle disputes: a bank takes a payment back, the user is frozen, and the outcome is booked.

The dispute's row freezes the user (`frozen`): from the transaction that stores it until the dispute is over or
won, or an operator accepts a lost one.
"""

import logging
from dataclasses import dataclass

from accounting import chart
from accounting.payments import rules
from accounting.payments.client import Object
from accounting.payments.context import PaymentsContext, check_currency, check_mode
from accounting.payments.progress import DISPUTE, advance
from accounting.payments.tables import Dispute, Topup
from accounting.payments.terms import from_cents
from accounting.payments.topups import Topups

_log = logging.getLogger(__name__)

_INQUIRIES = ("warning_needs_response", "warning_under_review")
_ENDS = {"warning_closed": "over", "prevented": "won", "won": "won", "lost": "lost"}


@dataclass(frozen=True, slots=True)
class Disputes:
    context: PaymentsContext
    topups: Topups

    def changed(self, dispute_id: str) -> None:
        """Retrieve a dispute again, and book in order what Stripe has done with the money so far."""
        made = self.context.stripe.retrieve("disputes", dispute_id)
        check_mode(made, is_live=self.context.stripe.is_live)
        check_currency(made)
        topup = self.topups.of_intent(made["payment_intent"])
        if topup is None:
            return  # It was not one of our payments; the reconciliation sees its money.
        self._note(made, topup)
        moved = made["balance_transactions"]
        taken = next((txn for txn in moved if txn["amount"] < 0), None)
        given = next((txn for txn in moved if txn["amount"] > 0), None)
        if taken is not None:
            self._withdraw(dispute_id, topup.user_id, taken)
        if given is not None and taken is not None:
            self._reinstate(dispute_id, topup.user_id, given)
        if made["status"] == "lost" and not self.context.ledger.is_booked(f"dp:{dispute_id}:lost"):
            owed_nano = self._owed(dispute_id, topup.user_id)
            self.context.ledger.book(rules.dispute_lost(dispute_id, topup.user_id, owed_nano))
        if made["status"] in _ENDS:
            self._move(dispute_id, _ENDS[made["status"]])

    def _note(self, made: Object, topup: Topup) -> None:
        """Store the dispute, which freezes the user. An inquiry may become a dispute later."""
        now_ns, status = self.context.clock_ns(), "inquiry" if made["status"] in _INQUIRIES else "open"
        with self.context.write() as session, session.begin():
            known = session.get(Dispute, made["id"], with_for_update=True)
            if known is not None:
                if made["status"] not in _ENDS:
                    advance(known, DISPUTE, status, now_ns)
                return
            session.add(
                Dispute(
                    id=made["id"],
                    topup_id=topup.id,
                    user_id=topup.user_id,
                    amount_nano=from_cents(made["amount"]),
                    status="inquiry" if made["status"] in _ENDS else status,
                    created_ns=now_ns,
                    updated_ns=now_ns,
                )
            )
        _log.warning("user %s disputes payment %s: frozen", topup.user_id, made["payment_intent"])

    def _withdraw(self, dispute_id: str, user_id: str, taken: Object) -> None:
        fee_nano = from_cents(taken["fee"])
        self.context.ledger.take_back(
            user_id,
            from_cents(-taken["amount"]),
            lambda paid, owed: rules.dispute_withdrawn(dispute_id, user_id, paid, owed, fee_nano),
        )

    def _reinstate(self, dispute_id: str, user_id: str, given: Object) -> None:
        """Reverse the withdrawal: settle what the user still owes of it, and return the rest as credits."""
        if self.context.ledger.is_booked(f"dp:{dispute_id}:reinstated"):
            return
        owed_nano = min(self._owed(dispute_id, user_id), from_cents(given["amount"]))
        paid_nano = from_cents(given["amount"]) - owed_nano
        fee_nano = from_cents(max(-given["fee"], 0))
        self.context.ledger.book(rules.dispute_reinstated(dispute_id, user_id, paid_nano, owed_nano, fee_nano))

    def _move(self, dispute_id: str, status: str) -> None:
        with self.context.write() as session, session.begin():
            dispute = session.get_one(Dispute, dispute_id, with_for_update=True)
            advance(dispute, DISPUTE, status, self.context.clock_ns())

    def _owed(self, dispute_id: str, user_id: str) -> int:
        """Return what the user owed for this dispute's withdrawal, and still owes."""
        return self.context.ledger.still_owed(f"dp:{dispute_id}:withdrawn", chart.user_receivable(user_id))
