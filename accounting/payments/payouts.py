"""Pay sellers in two steps: a transfer to their account at Stripe, then a payout from there to the bank.

A transfer with an unknown outcome stays pending and is requested again with the same key. A failed payout leaves
the money on the seller's account at Stripe. The next attempt has its own key.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session
from sqlmodel import col

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, PostingDenied
from accounting.money import format_usd
from accounting.payments import rules
from accounting.payments.context import PaymentsContext, check_currency, check_mode, own_id
from accounting.payments.errors import PaymentError, PaymentInvalid, PaymentNotFound, StripeRefused
from accounting.payments.pages import newest
from accounting.payments.progress import PAYOUT, advance
from accounting.payments.resumption import go_on
from accounting.payments.sellers import SellerAccounts, locked, refusal, stopped_why
from accounting.payments.tables import Payout, SellerAccount, account_at_stripe_table, payout_table
from accounting.payments.terms import NANO_PER_CENT, from_cents, to_cents

_log = logging.getLogger(__name__)
_payout = payout_table.c
_account = account_at_stripe_table.c

_PAUSES_S = (0, 3_600, 4 * 3_600, 16 * 3_600, 24 * 3_600)
"""Seconds that each attempt waits after the one before it: banks take days, and funds take time to be
available.
"""
ATTEMPTS_MAX = len(_PAUSES_S)
_DAY_NS = 24 * 3600 * 10**9
_GONE = ("refused", "cancelled")
_ROWS_MAX = 100
_TAG = "payout-"


@dataclass(frozen=True, slots=True)
class Payouts:
    context: PaymentsContext
    sellers: SellerAccounts

    def open(self, payout_id: str, seller_id: str, amount_nano: int) -> Payout:
        """Pay a seller part of the payable earnings. The same id again is the same payout.

        The seller's debt is first settled from the payable earnings.

        Raises:
            LedgerBroken: nothing is paid out until the ledger is repaired.
            PaymentInvalid: the amount is below the minimum or above the daily limit, or the account cannot be
                paid.
            PaymentNotFound: the seller has no account.
            InsufficientCredit: less is payable.
            IdempotencyConflict: the id belongs to another payout.
            StripeRefused, StripeUnavailable: as in `Calls.make`; `resume` continues after the latter.
        """
        to_cents(amount_nano)
        self.context.check()
        with self.context.write() as session, session.begin():
            account = locked(session, seller_id)
            known = session.get(Payout, payout_id)
            if known is not None and (known.seller_id, known.amount_nano) != (seller_id, amount_nano):
                raise IdempotencyConflict(payout_id)
            if known is None:
                day = select(func.coalesce(func.sum(_payout.amount_nano), 0)).where(
                    _payout.seller_id == seller_id,
                    _payout.created_ns > self.context.clock_ns() - _DAY_NS,
                    _payout.status.not_in(_GONE),
                )
                self._check(session, account, amount_nano, int(session.scalar(day) or 0))
                session.add(self._row(payout_id, account, amount_nano))
        self.context.calls.failpoint("row_stored")
        return self.drive(payout_id)

    def _check(self, session: Session, account: SellerAccount, amount_nano: int, today_nano: int) -> None:
        terms = self.context.terms
        if amount_nano < terms.payout_min_nano:
            raise PaymentInvalid("amount", f"a payout must be at least {format_usd(terms.payout_min_nano)} USD")
        if today_nano + amount_nano > terms.payout_day_max_nano:
            most = format_usd(terms.payout_day_max_nano)
            raise PaymentInvalid("amount", f"payouts are limited to {most} USD a day")
        if why := self._refusal(session, account, account.account_id or ""):
            raise PaymentInvalid("seller", why)

    def _refusal(self, session: Session, account: SellerAccount, account_id: str) -> str | None:
        quarantined_until_ns = account.changed_ns + self.context.terms.account_rest_s * 10**9
        stopped = stopped_why(session, account.seller_id)
        return stopped or refusal(account, account_id, quarantined_until_ns, self.context.clock_ns())

    def _row(self, payout_id: str, account: SellerAccount, amount_nano: int) -> Payout:
        now_ns = self.context.clock_ns()
        return Payout(
            id=payout_id,
            seller_id=account.seller_id,
            account_id=account.account_id or "",
            amount_nano=amount_nano,
            created_ns=now_ns,
            updated_ns=now_ns,
        )

    def newest(self, user_id: str | None, before: str | None, limit: int) -> list[Payout]:
        """Return a user's payouts, or all, newest first. `before` is the last known id."""
        return newest(self.context.read, Payout, col(Payout.seller_id), user_id, before, limit)

    def find(self, payout_id: str) -> Payout:
        """Return the payout of this id. Raises PaymentNotFound if there is none."""
        with self.context.read() as session:
            payout = session.get(Payout, payout_id)
        if payout is None:
            raise PaymentNotFound(f"payout {payout_id} not found")
        return payout

    def drive(self, payout_id: str) -> Payout:
        """Take a payout's next steps as far as possible. Repeating this is safe.

        Raises:
            LedgerBroken: a payout that is not yet at Stripe waits until the ledger is repaired.
        """
        self.context.check()
        payout = self.find(payout_id)
        if payout.status == "new":
            self._hold(payout)
        payout = self.find(payout_id)
        if payout.status == "held":
            self._transfer(payout)
        payout = self.find(payout_id)
        if payout.status == "transferred":
            self._pay_out(payout)
        return self.find(payout_id)

    def _hold(self, payout: Payout) -> None:
        owed_nano = self.context.ledger.settle_sellers_debt(f"pay:{_TAG}{payout.id}", payout.seller_id)
        try:
            if owed_nano:
                payable = chart.seller_payable(payout.seller_id)
                raise InsufficientCredit(
                    payable, payout.amount_nano + owed_nano, self.context.ledger.available(payable)
                )
            self.context.ledger.book(rules.payout_hold(_TAG + payout.id, payout.seller_id, payout.amount_nano))
        except InsufficientCredit:
            self._move(payout.id, "refused", only={"status": "new"}, reason="the available earnings are too low")
            if self.find(payout.id).status == "refused":
                raise
            return  # Another process continued it at the same moment, and found enough.
        self._move(payout.id, "held")
        if self.find(payout.id).status == "refused":
            self._void(payout)  # Another process found too little at the same moment, and refused it.

    def _transfer(self, payout: Payout) -> None:
        subject = _TAG + payout.id
        with self.context.read() as session:
            why = self._refusal(session, self.sellers.find(payout.seller_id), payout.account_id)
        # A transfer that may have reached Stripe is never cancelled here: Stripe's answer decides.
        if why and self.context.calls.forbid(subject, why):
            self._void(payout)
            self._move(payout.id, "cancelled", reason=why)
            return
        params = {
            "amount": to_cents(payout.amount_nano),
            "currency": "usd",
            "destination": payout.account_id,
            "transfer_group": subject,
        }
        try:
            made = self.context.calls.make(subject, "transfers", params)
        except StripeRefused as refused:
            self._void(payout)
            self._move(payout.id, "refused", reason=str(refused))
            raise
        seq = self.context.ledger.pending_seq(f"pay:{subject}:hold")
        assert seq is not None, "a payout is held before it is transferred"
        self.context.ledger.book(rules.payout_sent(subject, payout.seller_id, payout.amount_nano, seq))
        self._move(payout.id, "transferred", transfer_id=made["id"])

    def _pay_out(self, payout: Payout) -> None:
        """Pay from the account to the bank.

        The money already belongs to the seller, so a refusal is tried again later.
        """
        params = {"amount": to_cents(payout.amount_nano), "currency": "usd"}
        key = f"{_TAG}{payout.id}-bank-{payout.attempt}"
        with self.context.read() as session:
            stopped = stopped_why(session, payout.seller_id)
        if stopped and not self.context.calls.is_begun(key):
            self._note(payout, stopped)
            return
        try:
            made = self.context.calls.make(key, "payouts", params, account=payout.account_id)
        except StripeRefused as refused:
            self._try_again(payout, str(refused))
            return
        # Its failure may have been reported before; then another attempt is due.
        self._move(payout.id, "paying", only={"attempt": payout.attempt}, payout_id=made["id"])

    def payout_changed(self, account_id: str, stripe_id: str) -> None:
        """Retrieve a payout of a seller's account again: it arrived, or its bank returned it."""
        made = self.context.stripe.retrieve("payouts", stripe_id, account=account_id)
        check_mode(made, is_live=self.context.stripe.is_live)
        tag = own_id(made, _TAG)
        if tag is None or "-bank-" not in tag:
            return  # The seller or Stripe made this payout.
        payout_id, _, attempt = tag.rpartition("-bank-")
        payout = self.find(payout_id)
        if payout.account_id != account_id or str(payout.attempt) != attempt:
            return  # This is an earlier attempt, whose failure is known.
        if made["status"] == "paid":
            self._move(payout_id, "paid", only={"attempt": payout.attempt}, payout_id=stripe_id)
        elif made["status"] in ("failed", "canceled"):
            self._try_again(payout, made["failure_code"] or made["status"])

    def _note(self, payout: Payout, reason: str) -> None:
        with self.context.write() as session, session.begin():
            session.get_one(Payout, payout.id, with_for_update=True).reason = reason

    def _try_again(self, payout: Payout, reason: str) -> None:
        """Store a failure. `resume` makes the next attempt."""
        with self.context.write() as session, session.begin():
            row = session.get_one(Payout, payout.id, with_for_update=True)
            if row.attempt != payout.attempt or row.status not in ("transferred", "paying", "paid"):
                return
            row.attempt, row.status, row.reason = row.attempt + 1, "transferred", reason
            row.updated_ns = self.context.clock_ns()
        _log.warning("payout %s did not arrive: %s", payout.id, reason)

    def transfer_changed(self, transfer_id: str) -> None:
        """Retrieve a transfer again: reversed amounts are payable again."""
        made = self.context.stripe.retrieve("transfers", transfer_id, expand=["reversals"])
        check_mode(made, is_live=self.context.stripe.is_live)
        check_currency(made)
        payout_id = own_id(made, _TAG)
        if payout_id is None:
            return
        payout = self.find(payout_id)
        for reversal in made["reversals"]["data"]:
            amount_nano = from_cents(reversal["amount"])
            self.context.ledger.book(rules.payout_reversed(reversal["id"], payout.seller_id, amount_nano))
        if made["reversed"]:
            self._move(payout_id, "reversed", transfer_id=transfer_id)

    def run_schedule(self, day: str) -> int:
        """Pay every seller the payable earnings, in whole cents. Return the number of payouts.

        Repeating a day's run pays no seller twice. Raises LedgerBroken before any payout.
        """
        self.context.check()
        with self.context.read() as session:
            ready = select(_account.seller_id).where(_account.is_ready).order_by(_account.seller_id)
            seller_ids = session.scalars(ready).all()
        paid = 0
        for seller_id in seller_ids:
            self.context.ledger.settle_sellers_debt(f"payouts:{seller_id}-{day}", seller_id)
            payable_nano = self.context.ledger.available(chart.seller_payable(seller_id))
            amount_nano = (
                min(payable_nano, self.context.terms.payout_day_max_nano) // NANO_PER_CENT * NANO_PER_CENT
            )
            if amount_nano < self.context.terms.payout_min_nano:
                continue
            try:
                self.open(f"{seller_id}-{day}", seller_id, amount_nano)
                paid += 1
            except (PaymentError, PostingDenied) as error:
                _log.warning("seller %s was not paid on %s: %s", seller_id, day, error)
        return paid

    def resume(self) -> int:
        """Resume stalled payouts. After `ATTEMPTS_MAX` attempts a payout continues only on request."""
        stale_ns = self.context.stale_before_ns
        has_waited = or_(
            *(
                and_(_payout.attempt == number, _payout.updated_ns <= stale_ns - pause_s * 10**9)
                for number, pause_s in enumerate(_PAUSES_S, 1)
            )
        )
        standing = select(_payout.id, _payout.account_id, _payout.status, _payout.payout_id).where(
            _payout.status.in_(("new", "held", "transferred", "paying")), has_waited
        )
        with self.context.read() as session:
            rows = session.execute(standing.order_by(_payout.updated_ns).limit(_ROWS_MAX)).all()
        paying = {
            row.id: (row.account_id, row.payout_id) for row in rows if row.status == "paying" and row.payout_id
        }

        def look_again(payout_id: str) -> None:
            account_id, stripe_id = paying.get(payout_id, ("", None))
            if stripe_id:
                self.payout_changed(account_id, stripe_id)
            else:
                self.drive(payout_id)

        go_on("payout", [row.id for row in rows], look_again, self._touch)
        return len(rows)

    def _void(self, payout: Payout) -> None:
        subject = _TAG + payout.id
        seq = self.context.ledger.pending_seq(f"pay:{subject}:hold")
        if seq is not None:
            self.context.ledger.book(rules.payout_void(subject, payout.seller_id, seq))

    def _move(
        self, payout_id: str, status: str, /, *, only: Mapping[str, str | int] | None = None, **fields: str
    ) -> None:
        """Advance the payout's status, but only if its fields equal `only`."""
        with self.context.write() as session, session.begin():
            payout = session.get_one(Payout, payout_id, with_for_update=True)
            if any(getattr(payout, name) != value for name, value in (only or {}).items()):
                return
            if advance(payout, PAYOUT, status, self.context.clock_ns()):
                for name, value in fields.items():
                    setattr(payout, name, value)

    def _touch(self, payout_id: str) -> None:
        with self.context.write() as session, session.begin():
            session.get_one(Payout, payout_id, with_for_update=True).updated_ns = self.context.clock_ns()
