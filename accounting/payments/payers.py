"""Manage users as payers: their customer at Stripe, their automatic top-ups, and whether they are frozen."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.money import format_usd
from accounting.payments.context import PaymentsContext
from accounting.payments.errors import PaymentInvalid, PaymentNotFound
from accounting.payments.frozen import frozen_why
from accounting.payments.progress import DISPUTE, advance
from accounting.payments.rows import put_if_new
from accounting.payments.tables import Dispute, Payer, dispute_table
from accounting.payments.terms import AUTO_DAY_MAX, AUTO_MONTH_NANO, quote

_dispute = dispute_table.c


@dataclass(frozen=True, slots=True)
class Payers:
    context: PaymentsContext

    def customer(self, user_id: str) -> str:
        """Return the user's id at Stripe. Create it if it does not exist."""
        with self.context.write() as session, session.begin():
            payer = locked(session, user_id)
            if payer.customer_id:
                return payer.customer_id
        made = self.context.calls.make(f"customer-{user_id}", "customers", {})
        with self.context.write() as session, session.begin():
            payer = locked(session, user_id)
            payer.customer_id = payer.customer_id or made["id"]
            return payer.customer_id

    def find(self, user_id: str) -> Payer:
        with self.context.read() as session:
            return session.get(Payer, user_id) or Payer(user_id=user_id)

    def save_method(self, user_id: str, method_id: str) -> None:
        with self.context.write() as session, session.begin():
            payer = locked(session, user_id)
            payer.method_id, payer.auto_failures, payer.auto_paused_until_ns = method_id, 0, 0

    def top_up_below(
        self,
        user_id: str,
        below_nano: int,
        credit_nano: int,
        day_max: int = AUTO_DAY_MAX,
        month_nano: int = AUTO_MONTH_NANO,
    ) -> None:
        """Buy `credit_nano` with the saved method whenever less than `below_nano` is left, `day_max` times a day.

        The purchases of a UTC month, fees included, are at most `month_nano`.

        Raises:
            PaymentInvalid: an amount is not on offer.
            PaymentNotFound: the user has no saved method.
        """
        one_nano = quote(self.context.terms, credit_nano).total_nano
        if not 0 < below_nano <= credit_nano:
            raise PaymentInvalid("below", "the threshold must be above zero and at most the amount of one top-up")
        if month_nano < one_nano:
            least = format_usd(one_nano)
            raise PaymentInvalid(
                "per_month", f"one top-up costs {least} USD with its fee; the monthly limit must be at least that"
            )
        with self.context.write() as session, session.begin():
            payer = locked(session, user_id)
            if payer.method_id is None:
                raise PaymentNotFound("no payment method is saved: save one with a top-up first")
            payer.auto_below_nano, payer.auto_credit_nano = below_nano, credit_nano
            payer.auto_day_max, payer.auto_month_nano = day_max, month_nano
            payer.auto_failures = payer.auto_paused_until_ns = 0

    def top_up_no_more(self, user_id: str) -> None:
        with self.context.write() as session, session.begin():
            switch_auto_off(session, user_id)

    def freeze(self, user_id: str, why: str | None) -> None:
        """Stop a user's spending and payments until an admin has examined them.

        None ends that and accepts lost disputes. While another dispute is open, the user stays frozen.
        """
        with self.context.write() as session, session.begin():
            locked(session, user_id).frozen_reason = why
            if why is None:
                lost = select(Dispute).where(_dispute.user_id == user_id, _dispute.status == "lost")
                for dispute in session.scalars(lost.with_for_update()):
                    advance(dispute, DISPUTE, "forgiven", self.context.clock_ns())

    def frozen_why(self, user_id: str) -> str | None:
        """Return why a user is frozen, by an operator or a dispute; None if the user is not."""
        with self.context.read() as session:
            return frozen_why(session, user_id)


def switch_auto_off(session: Session, user_id: str) -> None:
    """Switch automatic top-ups off for this user until the threshold is set again."""
    payer = locked(session, user_id)
    payer.auto_below_nano = payer.auto_credit_nano = None


def locked(session: Session, user_id: str) -> Payer:
    """Return the user's row, created if necessary and locked for this transaction."""
    put_if_new(session, Payer(user_id=user_id))
    return session.get_one(Payer, user_id, with_for_update=True)
