"""/accounting/v1/refunds: return bought credits to the card that paid for them."""

from fastapi import APIRouter

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import TopupRefund
from gateway.admin import payments
from gateway.admin.fields import Body, Facts, Text
from gateway.admin.payments import list_payments, show_payment
from gateway.api.accounting.dependencies import Key, Limit, Paying, page
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import AnyCaller, Operator
from gateway.parameters import Named, OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1/refunds", route_class=KeyedRoute)


class NewRefund(Body):
    topup: Text
    amount: UsdAmount


@router.post("")
async def open_refund(payments_service: Paying, operator: Operator, key: Key, body: NewRefund) -> Facts:
    """Refund a top-up: the card that paid gets the money back."""
    refund = await payments.open_refund(payments_service, operator.actor, key, body.topup, body.amount)
    return _facts(refund) | {"mode": payments_service.mode}


@router.get("")
async def list_refunds(
    payments_service: Paying,
    authority: AnyCaller,
    user: OptionalText = None,
    before: OptionalText = None,
    limit: Limit = 20,
) -> Facts:
    """List refunds of the caller's top-ups, newest first; for operators all users'."""
    found = await list_payments("refunds", payments_service, authority, user, before, limit)
    return page(payments_service, found, _facts)


@router.get("/{refund_id}")
async def show_refund(payments_service: Paying, authority: AnyCaller, refund_id: Named) -> Facts:
    """Show a refund and its state."""
    refund = await show_payment("refunds", payments_service, authority, refund_id)
    return _facts(refund) | {"mode": payments_service.mode}


def _facts(refund: TopupRefund) -> Facts:
    return {
        "id": refund.id,
        "topup": refund.topup_id,
        "user": refund.user_id,
        "amount": format_usd(refund.amount_nano),
        "status": refund.status,
        "reason": refund.reason,
        "created": at(refund.created_ns),
    }
