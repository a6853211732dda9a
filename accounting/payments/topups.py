"""Sell credits by a page of Stripe's or a saved method, and book them when Stripe says that they are paid.

Neither a browser's return from the page nor a message's content books anything. The payment is retrieved, and must
match our row.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlmodel import col

from accounting import chart
from accounting.errors import IdempotencyConflict
from accounting.ledger.balances import balance
from accounting.payments import auto, rules
from accounting.payments.calls import TAG
from accounting.payments.client import Object
from accounting.payments.context import PaymentsContext, check_currency, check_mode, own_id
from accounting.payments.errors import (
    PayerFrozen,
    PaymentMismatch,
    PaymentNotFound,
    StripeRefused,
)
from accounting.payments.frozen import frozen_why
from accounting.payments.pages import newest
from accounting.payments.payers import Payers, locked
from accounting.payments.progress import TOPUP, advance
from accounting.payments.resumption import below_threshold, go_on
from accounting.payments.tables import Topup, topup_table
from accounting.payments.terms import Quote, from_cents, quote, to_cents

_log = logging.getLogger(__name__)
_topup = topup_table.c

_RESUMED_MAX = 100
_IN_FLIGHT = ("new", "open")
_TAG = "topup-"


@dataclass(frozen=True, slots=True)
class Topups:
    context: PaymentsContext
    payers: Payers

    def open(self, topup_id: str, user_id: str, credit_nano: int, *, saves_method: bool = False) -> Topup:
        """Start a top-up and return it with its payment page. The same id again is the same top-up.

        Raises:
            PaymentInvalid: the amount is not on offer.
            PayerFrozen: the user may buy nothing now.
            IdempotencyConflict: the id belongs to another top-up.
            StripeRefused, StripeUnavailable: as in `Calls.make`; `resume` continues after the latter.
        """
        paid = quote(self.context.terms, credit_nano)
        with self.context.write() as session, session.begin():
            known = session.get(Topup, topup_id)
            if known is None:
                if why := frozen_why(session, user_id):
                    raise PayerFrozen(user_id, why)
                session.add(self._row(topup_id, user_id, paid, saves_method=saves_method))
            elif (known.user_id, known.credit_nano) != (user_id, credit_nano):
                raise IdempotencyConflict(topup_id)
        self.context.calls.failpoint("row_stored")
        return self.drive(topup_id)

    def open_auto(self, user_id: str, topup_id: str) -> Topup | None:
        """Buy credits with the saved method if the user wants that and is below the threshold; one purchase at a
        time.

        Raises LedgerBroken, so that no user is charged for what the ledger may have lost.
        """
        self.context.check()
        with self.context.write() as session, session.begin():
            payer = locked(session, user_id)
            now_ns, is_own = self.context.clock_ns(), (_topup.user_id == user_id, _topup.is_auto)
            today = select(func.count()).where(
                *is_own, _topup.created_ns > now_ns - auto.DAY_NS, _topup.status != "failed"
            )
            running = select(_topup.id).where(*is_own, _topup.status.in_(_IN_FLIGHT))
            if frozen_why(session, user_id) or session.scalar(running.limit(1)) is not None:
                return None
            # Read the balance after the check for running purchases, so that it includes those that have ended.
            available_nano = balance(session, chart.user_paid(user_id)).available_nano
            if not auto.is_due(payer, available_nano, session.scalar(today) or 0, now_ns):
                return None
            paid = quote(self.context.terms, payer.auto_credit_nano or 0)
            if not auto.fits(payer, _spent_automatically(session, user_id, now_ns), paid.total_nano):
                return None
            session.add(self._row(topup_id, user_id, paid, is_auto=True))
        self.context.calls.failpoint("row_stored")
        return self.drive(topup_id)

    def run_auto(self) -> None:
        """Top up every user with automatic top-ups whose credits are below the threshold."""
        wanting = below_threshold(self.context.read)
        go_on(
            "the automatic top-up of", wanting, lambda user_id: self.open_auto(user_id, f"auto-{uuid.uuid4().hex}")
        )

    def spent_automatically(self, user_id: str) -> int:
        """Return the sum of this UTC month's automatic top-ups, fees included, in nano-USD."""
        with self.context.read() as session:
            return _spent_automatically(session, user_id, self.context.clock_ns())

    def _row(
        self, topup_id: str, user_id: str, paid: Quote, *, is_auto: bool = False, saves_method: bool = False
    ) -> Topup:
        now_ns = self.context.clock_ns()
        return Topup(
            id=topup_id,
            user_id=user_id,
            credit_nano=paid.credit_nano,
            fee_nano=paid.fee_nano,
            created_ns=now_ns,
            updated_ns=now_ns,
            is_auto=is_auto,
            saves_method=saves_method,
        )

    def newest(self, user_id: str | None, before: str | None, limit: int) -> list[Topup]:
        """Return a user's top-ups, or all, newest first. `before` is the last known id."""
        return newest(self.context.read, Topup, col(Topup.user_id), user_id, before, limit)

    def find(self, topup_id: str) -> Topup:
        """Return the top-up of this id. Raises PaymentNotFound if there is none."""
        with self.context.read() as session:
            topup = session.get(Topup, topup_id)
        if topup is None:
            raise PaymentNotFound(f"top-up {topup_id} not found")
        return topup

    def drive(self, topup_id: str) -> Topup:
        """Take a top-up's next steps. Repeating this is safe.

        Raises LedgerBroken for an automatic one.
        """
        topup = self.find(topup_id)
        if topup.status != "new":
            return topup
        key = f"{_TAG}{topup_id}"
        try:
            if topup.is_auto:
                self.context.check()
                if self._is_unwanted(topup, key):
                    self._move(topup_id, "failed", reason="automatic top-ups were switched off")
                    return self.find(topup_id)
                made = self.context.calls.make(key, "payment_intents", self._charge(topup))
                self.intent_changed(made["id"])
            else:
                made = self.context.calls.make(key, "checkout.sessions", self._page(topup))
                self._move(topup_id, "open", session_id=made["id"], url=made["url"])
        except StripeRefused as refused:
            self._fail(topup, str(refused))
            if not topup.is_auto:
                raise
        return self.find(topup_id)

    def _is_unwanted(self, topup: Topup, key: str) -> bool:
        """Return whether automatic top-ups were switched off, or the user frozen, before Stripe was asked."""
        payer = self.payers.find(topup.user_id)
        is_over = payer.auto_below_nano is None or self.payers.frozen_why(topup.user_id) is not None
        return is_over and self.context.calls.forbid(key, "automatic top-ups were switched off")

    def _page(self, topup: Topup) -> Mapping[str, Any]:
        tag: dict[str, Any] = {"metadata": {TAG: f"{_TAG}{topup.id}"}}
        if topup.saves_method:
            tag["setup_future_usage"] = "off_session"
        return {
            "mode": "payment",
            "customer": self.payers.customer(topup.user_id),
            "client_reference_id": topup.id,
            "line_items": [
                _item("Credits", topup.credit_nano),
                *([_item("Fee", topup.fee_nano)] if topup.fee_nano else []),
            ],
            "payment_intent_data": tag,
            "success_url": self.context.terms.success_url,
            "cancel_url": self.context.terms.cancel_url,
        }

    def _charge(self, topup: Topup) -> Mapping[str, Any]:
        return {
            "amount": to_cents(topup.credit_nano + topup.fee_nano),
            "currency": "usd",
            "customer": self.payers.customer(topup.user_id),
            "payment_method": self.payers.find(topup.user_id).method_id,
            "off_session": True,
            "confirm": True,
        }

    def session_changed(self, session_id: str) -> None:
        """Retrieve a payment page again: paid, expired, or still open."""
        page = self.context.stripe.retrieve("checkout.sessions", session_id)
        topup_id = own_id(page, _TAG)
        if topup_id is None:
            return
        topup = self.find(topup_id)
        if topup.session_id not in (None, session_id):
            _log.warning(
                "top-up %s has a page other than %s: it was created twice after an error", topup_id, session_id
            )
        if page["payment_intent"] and page["payment_status"] == "paid":
            self.intent_changed(page["payment_intent"])
        elif page["status"] == "expired":
            self._move(topup_id, "expired")

    def intent_changed(self, intent_id: str) -> None:
        """Retrieve a payment again. Book it if it succeeded, or fail an automatic one that no one can complete.

        Raises PaymentMismatch if the payment differs from its top-up.
        """
        expand = ["latest_charge.balance_transaction"]
        intent = self.context.stripe.retrieve("payment_intents", intent_id, expand=expand)
        topup_id = own_id(intent, _TAG)
        if topup_id is None:
            return
        topup = self.find(topup_id)
        if topup.is_auto and intent["status"] in auto.HAS_FAILED:
            self._fail(topup, f"the payment did not succeed: {intent['status']}")
        if intent["status"] != "succeeded":
            return
        paid = Quote(topup.credit_nano, topup.fee_nano)
        self._check(topup, intent, paid)
        bought = rules.topup(intent_id, topup_id, topup.user_id, paid)
        self.context.ledger.book(bought)
        if topup.status != "paid":
            self.context.ledger.settle_debt(bought.idem_key, topup.user_id)
        txn = intent["latest_charge"]["balance_transaction"]
        if txn:
            self.context.ledger.book(rules.stripe_fee(txn["id"], intent_id, from_cents(txn["fee"])))
        if self._move(topup_id, "paid", intent_id=intent_id) and topup.is_auto:
            with self.context.write() as session, session.begin():
                auto.note_success(locked(session, topup.user_id))
        if topup.saves_method and intent["payment_method"]:
            self.payers.save_method(topup.user_id, intent["payment_method"])

    def of_intent(self, intent_id: str) -> Topup | None:
        """Return the top-up of a payment, booked by then; None if the payment was for none.

        A message about a withdrawn payment may arrive before the payment's own.
        """
        paid = select(Topup).where(_topup.intent_id == intent_id)
        with self.context.read() as session:
            topup = session.scalar(paid)
        if topup is None:
            self.intent_changed(intent_id)
            with self.context.read() as session:
                topup = session.scalar(paid)
        return topup

    def _check(self, topup: Topup, intent: Object, paid: Quote) -> None:
        check_currency(intent)
        check_mode(intent, is_live=self.context.stripe.is_live)
        if topup.intent_id not in (None, intent["id"]):
            raise PaymentMismatch(f"top-up {topup.id} was paid by {topup.intent_id}, and again by {intent['id']}")
        if from_cents(intent["amount_received"]) != paid.total_nano:
            raise PaymentMismatch(f"{intent['id']} has another amount than top-up {topup.id}")

    def resume(self) -> int:
        """Resume stalled top-ups: calls with an unknown outcome, and pages whose messages were lost."""
        waiting = select(_topup.id, _topup.session_id).where(
            _topup.status.in_(_IN_FLIGHT), _topup.updated_ns <= self.context.stale_before_ns
        )
        with self.context.read() as session:
            rows = session.execute(waiting.order_by(_topup.updated_ns).limit(_RESUMED_MAX)).all()
        pages: dict[str, str | None] = {row.id: row.session_id for row in rows}
        go_on("top-up", pages, lambda topup_id: self._look_again(topup_id, pages[topup_id]), self._touch)
        return len(pages)

    def _look_again(self, topup_id: str, session_id: str | None) -> None:
        if session_id:
            self.session_changed(session_id)
        else:
            self.drive(topup_id)

    def _fail(self, topup: Topup, reason: str) -> None:
        now_ns = self.context.clock_ns()
        with self.context.write() as session, session.begin():
            row = session.get_one(Topup, topup.id, with_for_update=True)
            # Both a message and the call's answer may report one failure.
            if advance(row, TOPUP, "failed", now_ns):
                row.reason = reason
                if row.is_auto:
                    auto.note_failure(locked(session, row.user_id), now_ns)

    def _move(self, topup_id: str, status: str, /, **fields: str) -> bool:
        with self.context.write() as session, session.begin():
            topup = session.get_one(Topup, topup_id, with_for_update=True)
            has_moved = advance(topup, TOPUP, status, self.context.clock_ns())
            if has_moved:
                for name, value in fields.items():
                    setattr(topup, name, value)
        return has_moved

    def _touch(self, topup_id: str) -> None:
        with self.context.write() as session, session.begin():
            session.get_one(Topup, topup_id, with_for_update=True).updated_ns = self.context.clock_ns()


def _spent_automatically(session: Session, user_id: str, now_ns: int) -> int:
    """Return the month's automatic purchases. Running ones count; failed ones do not."""
    total = func.coalesce(func.sum(_topup.credit_nano + _topup.fee_nano), 0)
    query = select(total).where(
        _topup.user_id == user_id,
        _topup.is_auto,
        _topup.created_ns >= auto.month_start_ns(now_ns),
        _topup.status != "failed",
    )
    return int(session.scalar(query) or 0)


def _item(name: str, amount_nano: int) -> dict[str, Any]:
    price = {"currency": "usd", "unit_amount": to_cents(amount_nano), "product_data": {"name": name}}
    return {"price_data": price, "quantity": 1}
