"""/accounting/v1/refunds: return bought credits to the card that paid for them."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from fastapi import APIRouter

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import TopupRefund
from gateway.api.accounting.dependencies import Facts, Key
from gateway.api.accounting.keyed import KeyedRoute, id_of
from gateway.api.accounting.payment_dependencies import Limit, Paying, own, page, whose
from gateway.api.authority import AnyCaller, Operator
from gateway.api.fields import Body, Named, OptionalText, Text
from runtime.times import at

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService

router = APIRouter(prefix="/accounting/v1/refunds", route_class=KeyedRoute)


class NewRefund(Body):
    topup: Text
    amount: UsdAmount


@router.post("")
async def open_refund(payments_service: Paying, operator: Operator, key: Key, body: NewRefund) -> Facts:
    """Refund a top-up: the card that paid gets the money back."""
    refund_id = id_of("refund", operator.actor.name, key)
    refund = await payments_service.ask(payments_service.payments.refunds.open, refund_id, body.topup, body.amount)
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
    found = await payments_service.ask(
        payments_service.payments.refunds.newest, whose(authority, user), before, limit + 1
    )
    return page(payments_service, found, limit, _facts)


@router.get("/{refund_id}")
async def show_refund(payments_service: Paying, authority: AnyCaller, refund_id: Named) -> Facts:
    """Show a refund and its state."""
    refund = await own(
        payments_service,
        authority,
        payments_service.payments.refunds.find,
        refund_id,
        lambda refund: refund.user_id,
    )
    return _facts(refund) | {"mode": payments_service.mode}


async def refunds_of(payments_service: "PaymentsService", topup_ids: Collection[str]) -> list[Facts]:
    """Return refunds of top-ups that the caller may see, newest first."""
    return [
        _facts(refund)
        for refund in await payments_service.ask(payments_service.payments.refunds.of_topups, topup_ids)
    ]


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
