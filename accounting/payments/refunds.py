"""Refund top-ups: reserve the credits, then ask Stripe. Its answer takes or releases them."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlmodel import col

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit
from accounting.money import format_usd
from accounting.payments import rules
from accounting.payments.client import Object
from accounting.payments.context import PaymentsContext, check_currency, check_mode, own_id
from accounting.payments.errors import PaymentInvalid, PaymentNotFound, StripeRefused
from accounting.payments.pages import newest
from accounting.payments.payers import switch_auto_off
from accounting.payments.progress import REFUND, advance
from accounting.payments.resumption import go_on
from accounting.payments.tables import Topup, TopupRefund, refund_table
from accounting.payments.terms import from_cents, to_cents
from accounting.payments.topups import Topups

_refund = refund_table.c

GONE = ("refused", "failed", "returned")
_RESUMED_MAX = 100
_SHOWN_MAX = 1_000
_TAG = "refund-"


@dataclass(frozen=True, slots=True)
class Refunds:
    context: PaymentsContext
    topups: Topups

    def open(self, refund_id: str, topup_id: str, amount_nano: int) -> TopupRefund:
        """Refund credits of a paid top-up as money, at most what it bought. The same id is the same refund.

        This switches the user's automatic top-ups off, which would otherwise buy the credits again at once.

        Raises:
            LedgerBroken: nothing is refunded until the ledger is repaired.
            PaymentNotFound: there is no such top-up.
            PaymentInvalid: it was not paid, or less is left of it.
            InsufficientCredit: the user has spent the credits.
            IdempotencyConflict: the id belongs to another refund.
            StripeRefused, StripeUnavailable: as in `Calls.make`; `resume` continues after the latter.
        """
        if to_cents(amount_nano) < 1:
            raise PaymentInvalid("amount", "a refund must be at least one cent")
        self.context.check()
        now_ns = self.context.clock_ns()
        with self.context.write() as session, session.begin():
            topup = session.get(Topup, topup_id, with_for_update=True)
            if topup is None:
                raise PaymentNotFound(f"top-up {topup_id} not found")
            known = session.get(TopupRefund, refund_id)
            if known is not None and (known.topup_id, known.amount_nano) != (topup_id, amount_nano):
                raise IdempotencyConflict(refund_id)
            if known is None:
                others = select(func.coalesce(func.sum(_refund.amount_nano), 0)).where(
                    _refund.topup_id == topup_id, _refund.status.not_in(GONE)
                )
                left_nano = topup.credit_nano - int(session.scalar(others) or 0)
                if topup.status != "paid" or amount_nano > left_nano:
                    raise PaymentInvalid("amount", f"at most {format_usd(max(left_nano, 0))} USD can be refunded")
                switch_auto_off(session, topup.user_id)
                session.add(
                    TopupRefund(
                        id=refund_id,
                        topup_id=topup_id,
                        user_id=topup.user_id,
                        amount_nano=amount_nano,
                        created_ns=now_ns,
                        updated_ns=now_ns,
                    )
                )
        self.context.calls.failpoint("row_stored")
        return self.drive(refund_id)

    def newest(self, user_id: str | None, before: str | None, limit: int) -> list[TopupRefund]:
        """Return a user's refunds, or all, newest first. `before` is the last known id."""
        return newest(self.context.read, TopupRefund, col(TopupRefund.user_id), user_id, before, limit)

    def of_topups(self, topup_ids: Collection[str]) -> list[TopupRefund]:
        """Return the refunds of some top-ups, newest first; at most `_SHOWN_MAX`."""
        query = select(TopupRefund).where(_refund.topup_id.in_(topup_ids)).order_by(_refund.created_ns.desc())
        with self.context.read() as session:
            return list(session.scalars(query.limit(_SHOWN_MAX)))

    def find(self, refund_id: str) -> TopupRefund:
        """Return the refund of this id. Raises PaymentNotFound if there is none."""
        with self.context.read() as session:
            refund = session.get(TopupRefund, refund_id)
        if refund is None:
            raise PaymentNotFound(f"refund {refund_id} not found")
        return refund

    def drive(self, refund_id: str) -> TopupRefund:
        """Take a refund's next steps. Repeating this is safe. Raises LedgerBroken."""
        self.context.check()
        refund = self.find(refund_id)
        if refund.status == "new":
            self._hold(refund)
        if self.find(refund_id).status == "held":
            self._ask(refund)
        return self.find(refund_id)

    def _hold(self, refund: TopupRefund) -> None:
        try:
            self.context.ledger.book(rules.refund_hold(_TAG + refund.id, refund.user_id, refund.amount_nano))
        except InsufficientCredit:
            self._refuse_new(refund.id, "the credits have been spent")
            if self.find(refund.id).status == "refused":
                raise
            return  # Another process continued it at the same moment, and found enough.
        self._move(refund.id, "held")
        if self.find(refund.id).status == "refused":
            self._void(refund)  # Another process found too little at the same moment, and refused it.

    def _ask(self, refund: TopupRefund) -> None:
        with self.context.read() as session:
            topup = session.get_one(Topup, refund.topup_id)
        params = {"payment_intent": topup.intent_id, "amount": to_cents(refund.amount_nano)}
        try:
            made = self.context.calls.make(_TAG + refund.id, "refunds", params)
        except StripeRefused as refused:
            self._void(refund)
            self._move(refund.id, "refused", reason=str(refused))
            raise
        self._move(refund.id, "sent", refund_id=made["id"])

    def changed(self, stripe_id: str) -> None:
        """Retrieve a refund again: the answer of Stripe, or of the customer's bank, may come weeks later."""
        made = self.context.stripe.retrieve("refunds", stripe_id)
        check_mode(made, is_live=self.context.stripe.is_live)
        check_currency(made)
        refund_id = own_id(made, _TAG)
        if refund_id is None:
            self._elsewhere(made)
        elif made["status"] == "succeeded":
            self._succeed(self.find(refund_id), stripe_id)
        elif made["status"] in ("failed", "canceled"):
            self._fail(self.find(refund_id), stripe_id)

    def _succeed(self, refund: TopupRefund, stripe_id: str) -> None:
        subject = _TAG + refund.id
        seq = self.context.ledger.pending_seq(f"rf:{subject}:hold")
        if seq is None or self.context.ledger.is_booked(f"rf:{subject}:void"):
            return
        self.context.ledger.book(rules.refund_done(subject, refund.user_id, refund.amount_nano, seq))
        self._move(refund.id, "succeeded", refund_id=stripe_id)

    def _fail(self, refund: TopupRefund, stripe_id: str) -> None:
        subject = _TAG + refund.id
        if self.context.ledger.is_booked(f"rf:{subject}"):
            self.context.ledger.book(rules.refund_returned(subject, refund.user_id, refund.amount_nano))
            self._move(refund.id, "returned", refund_id=stripe_id)
        else:
            self._void(refund)
            self._move(refund.id, "failed", refund_id=stripe_id)

    def _void(self, refund: TopupRefund) -> None:
        subject = _TAG + refund.id
        seq = self.context.ledger.pending_seq(f"rf:{subject}:hold")
        if seq is not None:
            self.context.ledger.book(rules.refund_void(subject, refund.user_id, seq))

    def _elsewhere(self, made: Object) -> None:
        """Book a refund made on Stripe's own pages: take the user's credits, and book the rest as a debt."""
        is_booked = self.context.ledger.is_booked(f"rf:{made['id']}")
        topup = self.topups.of_intent(made["payment_intent"])
        if topup is None:
            return
        user_id, amount_nano = topup.user_id, from_cents(made["amount"])
        if made["status"] == "succeeded" and not is_booked:
            self.topups.payers.top_up_no_more(user_id)
            self.context.ledger.take_back(
                user_id, amount_nano, lambda paid, owed: rules.refund_elsewhere(made["id"], user_id, paid, owed)
            )
        elif made["status"] in ("failed", "canceled") and is_booked:
            self._give_back(made["id"], user_id, amount_nano)

    def _give_back(self, stripe_id: str, user_id: str, amount_nano: int) -> None:
        """Reverse a refund from Stripe's own pages that had succeeded and then came back from the bank."""
        if self.context.ledger.is_booked(f"rf:{stripe_id}:back"):
            return
        owed_nano = self.context.ledger.still_owed(f"rf:{stripe_id}", chart.user_receivable(user_id))
        self.context.ledger.book(
            rules.refund_elsewhere_returned(stripe_id, user_id, amount_nano - owed_nano, owed_nano)
        )

    def resume(self) -> int:
        """Resume stalled refunds."""
        standing = select(_refund.id, _refund.refund_id).where(
            _refund.status.in_(("new", "held", "sent")),
            _refund.updated_ns <= self.context.stale_before_ns,
        )
        with self.context.read() as session:
            rows = session.execute(standing.order_by(_refund.updated_ns).limit(_RESUMED_MAX)).all()
        stripe_ids: dict[str, str | None] = {row.id: row.refund_id for row in rows}
        go_on(
            "refund", stripe_ids, lambda refund_id: self._look_again(refund_id, stripe_ids[refund_id]), self._touch
        )
        return len(stripe_ids)

    def _look_again(self, refund_id: str, stripe_id: str | None) -> None:
        if stripe_id:
            self.changed(stripe_id)
        else:
            self.drive(refund_id)

    def _refuse_new(self, refund_id: str, reason: str) -> None:
        """Refuse the refund unless its credits are reserved by now."""
        with self.context.write() as session, session.begin():
            refund = session.get_one(TopupRefund, refund_id, with_for_update=True)
            if refund.status == "new" and advance(refund, REFUND, "refused", self.context.clock_ns()):
                refund.reason = reason

    def _move(self, refund_id: str, status: str, /, **fields: str) -> None:
        with self.context.write() as session, session.begin():
            refund = session.get_one(TopupRefund, refund_id, with_for_update=True)
            if advance(refund, REFUND, status, self.context.clock_ns()):
                for name, value in fields.items():
                    setattr(refund, name, value)

    def _touch(self, refund_id: str) -> None:
        with self.context.write() as session, session.begin():
            session.get_one(TopupRefund, refund_id, with_for_update=True).updated_ns = self.context.clock_ns()
