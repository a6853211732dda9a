"""Users towards Stripe: who they are there, how they pay without being asked, and who is frozen."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from accounting.payments.desk import Desk
from accounting.payments.errors import PaymentInvalid, PaymentNotFound
from accounting.payments.tables import Payer
from accounting.payments.terms import quote


@dataclass(frozen=True, slots=True)
class Payers:
    desk: Desk

    def customer(self, user_id: str) -> str:
        """Return the user's id at Stripe, where there is one from now on."""
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            if payer.customer_id:
                return payer.customer_id
        made = self.desk.calls.make(f"customer-{user_id}", "customers", {})
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            payer.customer_id = payer.customer_id or made["id"]
            return payer.customer_id

    def find(self, user_id: str) -> Payer:
        with self.desk.read() as session:
            return session.get(Payer, user_id) or Payer(user_id=user_id)

    def save_method(self, user_id: str, method_id: str) -> None:
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            payer.method_id, payer.auto_failures = method_id, 0

    def top_up_below(self, user_id: str, below_nano: int, credit_nano: int) -> None:
        """Buy `credit_nano` by the saved method whenever less than `below_nano` is left.

        Raises PaymentInvalid for an amount that is not on offer, PaymentNotFound without a saved method.
        """
        quote(self.desk.terms, credit_nano)
        if not 0 < below_nano <= credit_nano:
            raise PaymentInvalid("below", "the threshold is above zero and at most the amount that is bought")
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            if payer.method_id is None:
                raise PaymentNotFound("no payment method is saved: save one with a top-up first")
            payer.auto_below_nano, payer.auto_credit_nano, payer.auto_failures = below_nano, credit_nano, 0

    def top_up_no_more(self, user_id: str) -> None:
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            payer.auto_below_nano = payer.auto_credit_nano = None

    def freeze(self, user_id: str, why: str | None) -> None:
        """Let a user spend and pay nothing until somebody looked into it; None ends it."""
        with self.desk.write() as session, session.begin():
            locked(session, user_id).frozen_why = why


def locked(session: Session, user_id: str) -> Payer:
    """Return the user's row, made if need be, for this transaction alone."""
    payer = session.get(Payer, user_id, with_for_update=True)
    if payer is None:
        payer = Payer(user_id=user_id)
        session.add(payer)
        session.flush()
    return payer
