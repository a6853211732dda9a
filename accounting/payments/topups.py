"""Top-ups: credits for money, by a page of Stripe's or a saved method, booked when Stripe says that it was paid.

Nothing is ever booked because a browser came back from the page, nor from what a message says: the payment is
fetched, and must be the one that our row asked for.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from accounting import chart
from accounting.errors import IdempotencyConflict
from accounting.ledger import balances
from accounting.payments import rules
from accounting.payments.calls import TAG
from accounting.payments.client import Object
from accounting.payments.desk import Desk, check_currency, check_mode, own_id
from accounting.payments.errors import PaymentError, PaymentMismatch, PaymentNotFound, StripeRefused
from accounting.payments.payers import Payers, locked
from accounting.payments.progress import TOPUP, advance
from accounting.payments.tables import Topup, payer_table, topup_table
from accounting.payments.terms import Quote, from_cents, quote, to_cents

_log = logging.getLogger(__name__)
_payer, _topup = payer_table.c, topup_table.c

AUTO_FAILURES_MAX = 3
_RESUMED_MAX = 100
_IN_FLIGHT = ("new", "open")
_TAG = "topup-"


@dataclass(frozen=True, slots=True)
class Topups:
    desk: Desk
    payers: Payers

    def open(self, topup_id: str, user_id: str, credit_nano: int, *, saves_method: bool = False) -> Topup:
        """Begin a top-up and return it with the page where it is paid. The same id again is the same top-up.

        Raises:
            PaymentInvalid: an amount that is not on offer.
            IdempotencyConflict: the id is another top-up's.
            StripeRefused, StripeUnavailable: as of `Calls.make`; `resume` goes on with what is unavailable.
        """
        paid = quote(self.desk.terms, credit_nano)
        with self.desk.write() as session, session.begin():
            known = session.get(Topup, topup_id)
            if known is None:
                session.add(self._row(topup_id, user_id, paid, saves_method=saves_method))
            elif (known.user_id, known.credit_nano) != (user_id, credit_nano):
                raise IdempotencyConflict(topup_id)
        self.desk.calls.failpoint("row_stored")
        return self.drive(topup_id)

    def open_auto(self, user_id: str, topup_id: str) -> Topup | None:
        """Buy credits by the saved method if the user wants that and is below the threshold; one at a time."""
        available_nano = self.desk.ledger.available(chart.user_paid(user_id))
        with self.desk.write() as session, session.begin():
            payer = locked(session, user_id)
            wanted = payer.auto_below_nano is not None and available_nano < payer.auto_below_nano
            allowed = payer.method_id and not payer.frozen_why and payer.auto_failures < AUTO_FAILURES_MAX
            running = select(_topup.id).where(
                _topup.user_id == user_id, _topup.is_auto, _topup.status.in_(_IN_FLIGHT)
            )
            if not (wanted and allowed) or session.scalar(running.limit(1)) is not None:
                return None
            paid = quote(self.desk.terms, payer.auto_credit_nano or 0)
            session.add(self._row(topup_id, user_id, paid, is_auto=True))
        self.desk.calls.failpoint("row_stored")
        return self.drive(topup_id)

    def run_auto(self) -> None:
        """Top up for everybody who wants it and is below the threshold."""
        with self.desk.read() as session:
            wanted = select(_payer.user_id, _payer.auto_below_nano).where(_payer.auto_below_nano.is_not(None))
            wanting = session.execute(wanted).all()
            available = balances.available(session, [chart.user_paid(user_id) for user_id, _ in wanting])
        for user_id, below_nano in wanting:
            if available[chart.user_paid(user_id)] >= below_nano:
                continue
            try:
                self.open_auto(user_id, f"auto-{uuid.uuid4().hex}")
            except PaymentError as error:
                _log.warning("the automatic top-up of %s waits: %s", user_id, error)

    def _row(
        self, topup_id: str, user_id: str, paid: Quote, *, is_auto: bool = False, saves_method: bool = False
    ) -> Topup:
        now_ns = self.desk.clock_ns()
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

    def find(self, topup_id: str) -> Topup:
        with self.desk.read() as session:
            topup = session.get(Topup, topup_id)
        if topup is None:
            raise PaymentNotFound(f"there is no top-up {topup_id}")
        return topup

    def drive(self, topup_id: str) -> Topup:
        """Do what a top-up needs next; again and again it comes to the same."""
        topup = self.find(topup_id)
        if topup.status != "new":
            return topup
        key = f"{_TAG}{topup_id}"
        try:
            if topup.is_auto:
                made = self.desk.calls.make(key, "payment_intents", self._charge(topup))
                self.intent_changed(made["id"])
            else:
                made = self.desk.calls.make(key, "checkout.sessions", self._page(topup))
                self._move(topup_id, "open", session_id=made["id"], url=made["url"])
        except StripeRefused as refused:
            self._fail(topup, refused)
            if not topup.is_auto:
                raise
        return self.find(topup_id)

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
            "success_url": self.desk.terms.success_url,
            "cancel_url": self.desk.terms.cancel_url,
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
        """Look at a page again: paid, expired, or neither yet."""
        page = self.desk.stripe.retrieve("checkout.sessions", session_id)
        topup_id = own_id(page, _TAG)
        if topup_id is None:
            return
        topup = self.find(topup_id)
        if topup.session_id not in (None, session_id):
            _log.warning("top-up %s has another page than %s: asked twice after an error", topup_id, session_id)
        if page["payment_intent"] and page["payment_status"] == "paid":
            self.intent_changed(page["payment_intent"])
        elif page["status"] == "expired":
            self._move(topup_id, "expired")

    def intent_changed(self, intent_id: str) -> None:
        """Look at a payment again, and book it where it has succeeded.

        Raises PaymentMismatch for a payment that is not what its top-up asked for.
        """
        expand = ["latest_charge.balance_transaction"]
        intent = self.desk.stripe.retrieve("payment_intents", intent_id, expand=expand)
        topup_id = own_id(intent, _TAG)
        if topup_id is None or intent["status"] != "succeeded":
            return
        topup = self.find(topup_id)
        paid = Quote(topup.credit_nano, topup.fee_nano)
        self._check(topup, intent, paid)
        self.desk.ledger.book(rules.topup(intent_id, topup_id, topup.user_id, paid))
        txn = intent["latest_charge"]["balance_transaction"]
        if txn:
            self.desk.ledger.book(rules.stripe_fee(txn["id"], intent_id, from_cents(txn["fee"])))
        self._move(topup_id, "paid", intent_id=intent_id)
        if topup.saves_method and intent["payment_method"]:
            self.payers.save_method(topup.user_id, intent["payment_method"])

    def of_intent(self, intent_id: str) -> Topup | None:
        """Return the top-up that a payment paid, booked by then; None for a payment that was not for one.

        What is taken back of a payment may be told before the payment is.
        """
        paid = select(Topup).where(_topup.intent_id == intent_id)
        with self.desk.read() as session:
            topup = session.scalar(paid)
        if topup is None:
            self.intent_changed(intent_id)
            with self.desk.read() as session:
                topup = session.scalar(paid)
        return topup

    def _check(self, topup: Topup, intent: Object, paid: Quote) -> None:
        check_currency(intent)
        check_mode(intent, is_live=self.desk.stripe.is_live)
        if topup.intent_id not in (None, intent["id"]):
            raise PaymentMismatch(f"top-up {topup.id} was paid by {topup.intent_id}, and again by {intent['id']}")
        if from_cents(intent["amount_received"]) != paid.total_nano:
            raise PaymentMismatch(f"{intent['id']} is of another amount than top-up {topup.id} asked for")

    def resume(self) -> int:
        """Go on with what stands still: calls that nobody knows the end of, pages whose messages got lost."""
        waiting = select(_topup.id, _topup.session_id).where(
            _topup.status.in_(_IN_FLIGHT), _topup.updated_ns <= self.desk.stale_before_ns
        )
        with self.desk.read() as session:
            rows = session.execute(waiting.order_by(_topup.updated_ns).limit(_RESUMED_MAX)).all()
        for topup_id, session_id in rows:
            try:
                if session_id:
                    self.session_changed(session_id)
                else:
                    self.drive(topup_id)
            except PaymentError as error:
                _log.warning("top-up %s waits: %s", topup_id, error)
            self._touch(topup_id)
        return len(rows)

    def _fail(self, topup: Topup, refused: StripeRefused) -> None:
        self._move(topup.id, "failed", reason=str(refused))
        if topup.is_auto:
            with self.desk.write() as session, session.begin():
                locked(session, topup.user_id).auto_failures += 1

    def _move(self, topup_id: str, status: str, /, **fields: str) -> None:
        with self.desk.write() as session, session.begin():
            topup = session.get_one(Topup, topup_id, with_for_update=True)
            if advance(topup, TOPUP, status, self.desk.clock_ns()):
                for name, value in fields.items():
                    setattr(topup, name, value)

    def _touch(self, topup_id: str) -> None:
        with self.desk.write() as session, session.begin():
            session.get_one(Topup, topup_id, with_for_update=True).updated_ns = self.desk.clock_ns()


def _item(name: str, amount_nano: int) -> dict[str, Any]:
    price = {"currency": "usd", "unit_amount": to_cents(amount_nano), "product_data": {"name": name}}
    return {"price_data": price, "quantity": 1}
