"""Manage sellers at Stripe: onboarding on Stripe's pages, and whether money may go to their account."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.payments.client import Object
from accounting.payments.context import PaymentsContext, check_mode, own_id
from accounting.payments.errors import PaymentNotFound, StripeUnavailable
from accounting.payments.frozen import frozen_why
from accounting.payments.rows import put_if_new
from accounting.payments.tables import SellerAccount, account_at_stripe_table

_TAG = "seller-"
_account = account_at_stripe_table.c


@dataclass(frozen=True, slots=True)
class SellerAccounts:
    context: PaymentsContext

    def onboard(self, seller_id: str, link_id: str) -> str:
        """Return the address of a page at Stripe where the seller enters identity and bank details.

        Links last minutes, and each `link_id` makes a new one. Stripe reports later whether the seller is done.
        """
        url = self.context.terms.onboarding_url
        params = {
            "account": self._account(seller_id),
            "type": "account_onboarding",
            "refresh_url": url,
            "return_url": url,
        }
        # Do not store this call: a link is used at once or never, and Stripe takes no metadata on it.
        link = self.context.stripe.create("account_links", params, key=f"link-{seller_id}-{link_id}")
        return str(link["url"])

    def _account(self, seller_id: str) -> str:
        with self.context.read() as session:
            row = session.get(SellerAccount, seller_id)
        if row is not None and row.account_id:
            return row.account_id
        params = {
            "type": "express",
            "capabilities": {"transfers": {"requested": True}},
            # We start each payout ourselves, so that a failed one has a row.
            "settings": {"payouts": {"schedule": {"interval": "manual"}}},
        }
        made = self.context.calls.make(_TAG + seller_id, "accounts", params)
        self.attach(seller_id, made["id"])
        return str(made["id"])

    def attach(self, seller_id: str, account_id: str) -> None:
        """Make this the seller's account from now on. After a change, payouts to it wait for a while."""
        now_ns = self.context.clock_ns()
        with self.context.write() as session, session.begin():
            put_if_new(session, SellerAccount(seller_id=seller_id, account_id=account_id, changed_ns=0))
            row = session.get_one(SellerAccount, seller_id, with_for_update=True)
            if row.account_id != account_id:
                # The first account replaces none, so no one can have swapped it.
                row.changed_ns = now_ns if row.account_id else 0
                row.account_id, row.is_ready = account_id, False

    def changed(self, account_id: str) -> None:
        """Retrieve an account again: Stripe's requirements of the seller, and whether payouts are enabled."""
        made = self.context.stripe.retrieve("accounts", account_id)
        check_mode({"livemode": self.context.stripe.is_live, **made}, is_live=self.context.stripe.is_live)
        with self.context.write() as session, session.begin():
            row = session.scalar(select(SellerAccount).where(_account.account_id == account_id))
            if row is None:
                self._refuse_foreign(session, made)
                return
            row.is_ready = bool(made["payouts_enabled"] and made["details_submitted"])
            row.reason = (made.get("requirements") or {}).get("disabled_reason")

    def _refuse_foreign(self, session: Session, made: Object) -> None:
        """Raise unless the seller has another account: after an error, one may have been created twice."""
        seller_id = own_id(made, _TAG)
        if seller_id is None:
            raise PaymentNotFound(f"account {made['id']} belongs to no seller")
        if session.get(SellerAccount, seller_id) is None:
            raise StripeUnavailable(f"account {made['id']} is being created at this moment")

    def freeze(self, seller_id: str, why: str | None) -> None:
        """Stop payouts to a seller, with or without an account, until an admin has examined the case.

        None ends that.
        """
        with self.context.write() as session, session.begin():
            row = session.get(SellerAccount, seller_id, with_for_update=True)
            if row is None:
                row = SellerAccount(seller_id=seller_id, changed_ns=0)
                session.add(row)
            row.frozen_reason = why

    def find(self, seller_id: str) -> SellerAccount:
        """Return a seller's payout account. Raises PaymentNotFound if onboarding has not begun."""
        with self.context.read() as session:
            row = session.get(SellerAccount, seller_id)
        if row is None:
            raise PaymentNotFound(f"{seller_id} has no account for payouts; complete onboarding first")
        return row


def locked(session: Session, seller_id: str) -> SellerAccount:
    """Return a seller's payout account, locked until the transaction ends.

    Raises PaymentNotFound if there is none.
    """
    row = session.get(SellerAccount, seller_id, with_for_update=True)
    if row is None or row.account_id is None:
        raise PaymentNotFound(f"{seller_id} has no account for payouts; complete onboarding first")
    return row


def stopped_why(session: Session, seller_id: str) -> str | None:
    """Return why payouts to a user are stopped, as a seller or because of payments as a payer; None if they are
    not.
    """
    account = session.get(SellerAccount, seller_id)
    if account is not None and account.frozen_reason:
        return f"the seller is frozen: {account.frozen_reason}"
    if why := frozen_why(session, seller_id):
        return f"the seller is frozen as a payer: {why}"
    return None


def refusal(account: SellerAccount, account_id: str, rests_until_ns: int, now_ns: int) -> str | None:
    """Return why no money may go to this account now; None if it may."""
    if account.account_id != account_id:
        return "the seller's account has changed since"
    if not account.is_ready:
        return f"Stripe makes no payouts to the account: {account.reason or 'onboarding is not finished'}"
    if now_ns < rests_until_ns:
        return "the account was changed recently"
    return None
