"""/accounting/v1/topups: buy credits. Amounts are decimal strings in USD."""

from typing import Annotated

from fastapi import APIRouter, Query

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import Payer, Topup
from accounting.payments.terms import quote
from gateway.admin import payments
from gateway.admin.fields import Facts
from gateway.admin.payments import AutoTopup, NewTopup, list_payments, show_payment
from gateway.api.accounting.dependencies import Key, Limit, Paying, UserCaller, page
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import AnyCaller
from gateway.parameters import Named, OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1/topups", route_class=KeyedRoute)


@router.get("/quote")
async def quote_topup(payments_service: Paying, _: AnyCaller, amount: Annotated[UsdAmount, Query()]) -> Facts:
    """Quote a top-up with its fee."""
    paid = await payments_service.ask(quote, payments_service.payments.topups.context.terms, amount)
    return {
        "credits": format_usd(paid.credit_nano),
        "fee": format_usd(paid.fee_nano),
        "total": format_usd(paid.total_nano),
        "mode": payments_service.mode,
    }


@router.get("/auto")
async def show_auto(payments_service: Paying, caller: UserCaller) -> Facts:
    """Show the settings of automatic top-ups."""
    payer, spent_nano = await payments.show_auto(payments_service, caller.user_id)
    return _auto_facts(payments_service.mode, payer) | {
        "spent_this_month": format_usd(spent_nano),
        "has_method": payer.method_id is not None,
        "failures": payer.auto_failures,
        "paused_until": at(payer.auto_paused_until_ns) if payer.auto_paused_until_ns else None,
    }


@router.put("/auto")
async def set_auto(payments_service: Paying, caller: UserCaller, _: Key, body: AutoTopup) -> Facts:
    """Turn on automatic top-ups below a threshold."""
    payer = await payments.set_auto(payments_service, caller.user_id, body)
    return _auto_facts(payments_service.mode, payer)


@router.delete("/auto")
async def end_auto(payments_service: Paying, caller: UserCaller) -> Facts:
    """Turn automatic top-ups off."""
    payer = await payments.set_auto(payments_service, caller.user_id, None)
    return _auto_facts(payments_service.mode, payer)


@router.post("")
async def open_topup(payments_service: Paying, caller: UserCaller, key: Key, body: NewTopup) -> Facts:
    """Start a top-up: `url` is where to pay; the credits are added when Stripe confirms the payment."""
    topup = await payments.open_topup(payments_service, caller.user_id, key, body)
    return _facts(topup) | {"mode": payments_service.mode}


@router.get("")
async def list_topups(
    payments_service: Paying,
    authority: AnyCaller,
    user: OptionalText = None,
    before: OptionalText = None,
    limit: Limit = 20,
) -> Facts:
    """List own top-ups, newest first; for operators all users'. `next` is the `before` of the next page."""
    found = await list_payments("topups", payments_service, authority, user, before, limit)
    return page(payments_service, found, _facts)


@router.get("/{topup_id}")
async def show_topup(payments_service: Paying, authority: AnyCaller, topup_id: Named) -> Facts:
    """Show a top-up and its state."""
    topup = await show_payment("topups", payments_service, authority, topup_id)
    return _facts(topup) | {"mode": payments_service.mode}


def _facts(topup: Topup) -> Facts:
    return {
        "id": topup.id,
        "user": topup.user_id,
        "credits": format_usd(topup.credit_nano),
        "fee": format_usd(topup.fee_nano),
        "total": format_usd(topup.credit_nano + topup.fee_nano),
        "automatic": topup.is_auto,
        "status": topup.status,
        "url": topup.url,
        "reason": topup.reason,
        "created": at(topup.created_ns),
    }


def _auto_facts(mode: str, payer: Payer) -> Facts:
    below_nano, amount_nano = payer.auto_below_nano, payer.auto_credit_nano
    return {
        "below": None if below_nano is None else format_usd(below_nano),
        "amount": None if amount_nano is None else format_usd(amount_nano),
        "per_day": payer.auto_day_max,
        "per_month": format_usd(payer.auto_month_nano),
        "mode": mode,
    }
