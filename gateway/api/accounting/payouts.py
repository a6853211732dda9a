"""/accounting/v1/sellers and payouts: sellers set up their payout account and request payouts."""

from fastapi import APIRouter

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import Payout
from gateway.admin import payments
from gateway.admin.fields import Body, Facts
from gateway.admin.payments import Frozen, list_payments, show_payment
from gateway.api.accounting.dependencies import Key, Limit, Paying, UserCaller, page
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import AnyCaller, Operator
from gateway.parameters import Named, OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1", route_class=KeyedRoute)


class NewPayout(Body):
    amount: UsdAmount


@router.post("/sellers/onboard")
async def onboard(payments_service: Paying, caller: UserCaller, key: Key) -> Facts:
    """Start the onboarding of a seller at Stripe: `url` is a page of Stripe's that expires within minutes."""
    url = await payments.onboard(payments_service, caller.user_id, key)
    return {"url": url, "mode": payments_service.mode}


@router.get("/sellers/me")
async def show_account(payments_service: Paying, caller: UserCaller) -> Facts:
    """Show whether the caller can be paid, and what is missing."""
    account = await payments_service.ask(payments_service.payments.sellers.find, caller.user_id)
    return {
        "ready": account.is_ready,
        "reason": account.frozen_reason or account.reason,
        "mode": payments_service.mode,
    }


@router.put("/sellers/frozen/{user}")
async def freeze_seller(payments_service: Paying, operator: Operator, _: Key, user: Named, body: Frozen) -> Facts:
    """Stop payouts to a seller with a reason, for example disputed money, or resume them with null."""
    return await payments.freeze(payments_service, operator, user, body.why, "sellers")


@router.post("/payouts")
async def open_payout(payments_service: Paying, caller: UserCaller, key: Key, body: NewPayout) -> Facts:
    """Pay out available earnings."""
    payout = await payments.open_payout(payments_service, caller.user_id, key, body.amount)
    return _facts(payout) | {"mode": payments_service.mode}


@router.get("/payouts")
async def list_payouts(
    payments_service: Paying,
    authority: AnyCaller,
    user: OptionalText = None,
    before: OptionalText = None,
    limit: Limit = 20,
) -> Facts:
    """List the caller's payouts, newest first; for operators all users'."""
    found = await list_payments("payouts", payments_service, authority, user, before, limit)
    return page(payments_service, found, _facts)


@router.get("/payouts/{payout_id}")
async def show_payout(payments_service: Paying, authority: AnyCaller, payout_id: Named) -> Facts:
    """Show a payout and its state."""
    payout = await show_payment("payouts", payments_service, authority, payout_id)
    return _facts(payout) | {"mode": payments_service.mode}


@router.post("/payouts/{payout_id}/retry")
async def retry_payout(payments_service: Paying, _: Operator, __: Key, payout_id: Named) -> Facts:
    """Retry a payout that failed too often and is no longer retried."""
    payout = await payments_service.ask(payments_service.payments.payouts.drive, payout_id)
    return _facts(payout) | {"mode": payments_service.mode}


def _facts(payout: Payout) -> Facts:
    return {
        "id": payout.id,
        "user": payout.seller_id,
        "amount": format_usd(payout.amount_nano),
        "status": payout.status,
        "attempt": payout.attempt,
        "reason": payout.reason,
        "created": at(payout.created_ns),
    }
