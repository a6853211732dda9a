"""Book the gateway's own payouts from Stripe to its bank, made on Stripe's schedule or at the owner's request."""

from dataclasses import dataclass

from accounting.payments import rules
from accounting.payments.context import PaymentsContext, check_currency, check_mode
from accounting.payments.terms import from_cents


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
