"""/accounting/v1/refunds/usage: refund a request's charge to its payer, completely or in part."""

from fastapi import APIRouter

from accounting.money import format_usd
from gateway.admin import usage_refunds
from gateway.admin.fields import Facts
from gateway.admin.usage_refunds import UsageRefund
from gateway.api.accounting.dependencies import Access, Key
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import Operator

router = APIRouter(prefix="/accounting/v1/refunds", route_class=KeyedRoute)


@router.post("/usage")
async def refund_usage(_: Operator, access: Access, __: Key, body: UsageRefund) -> Facts:
    """Refund a request's charge, once: another amount for a refunded request is refused."""
    charge_nano, amount_nano = await usage_refunds.refund_usage(access, body)
    amounts = {"charged": format_usd(charge_nano), "amount": format_usd(amount_nano)}
    return {"request_id": body.request_id, **amounts, "reason": body.reason}
