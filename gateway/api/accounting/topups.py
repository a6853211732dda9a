"""/accounting/v1/topups: buy credits. Amounts are decimal strings in USD."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import Payer, Topup
from accounting.payments.terms import AUTO_DAY_MAX, AUTO_MONTH_NANO, quote
from gateway.api.accounting.dependencies import Facts, Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute, id_of
from gateway.api.accounting.payment_dependencies import Limit, Paying, own, page, whose
from gateway.api.authority import AnyCaller
from gateway.api.fields import Body, Named, OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1/topups", route_class=KeyedRoute)

PER_DAY_MAX = 24


class NewTopup(Body):
    amount: UsdAmount
    save_method: bool = False
    """Keep the method of payment, for automatic top-ups."""


class AutoTopup(Body):
    """Buy `amount` with the saved method whenever fewer credits than `below` are left, at most `per_day` times.

    The total in a UTC month, including fees, is at most `per_month`.
    """

    below: UsdAmount
    amount: UsdAmount
    per_day: Annotated[int, Field(ge=1, le=PER_DAY_MAX)] = AUTO_DAY_MAX
    per_month: UsdAmount = AUTO_MONTH_NANO


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
    payer = await payments_service.ask(payments_service.payments.payers.find, caller.user_id)
    spent_nano = await payments_service.ask(payments_service.payments.topups.spent_automatically, caller.user_id)
    return _auto_facts(payments_service.mode, payer) | {
        "spent_this_month": format_usd(spent_nano),
        "has_method": payer.method_id is not None,
        "failures": payer.auto_failures,
        "paused_until": at(payer.auto_paused_until_ns) if payer.auto_paused_until_ns else None,
    }


@router.put("/auto")
async def set_auto(payments_service: Paying, caller: UserCaller, _: Key, body: AutoTopup) -> Facts:
    """Turn on automatic top-ups below a threshold."""
    payers = payments_service.payments.payers
    terms = (body.below, body.amount, body.per_day, body.per_month)
    await payments_service.ask(payers.top_up_below, caller.user_id, *terms)
    return _auto_facts(payments_service.mode, await payments_service.ask(payers.find, caller.user_id))


@router.delete("/auto")
async def end_auto(payments_service: Paying, caller: UserCaller) -> Facts:
    """Turn automatic top-ups off."""
    await payments_service.ask(payments_service.payments.payers.top_up_no_more, caller.user_id)
    return _auto_facts(
        payments_service.mode, await payments_service.ask(payments_service.payments.payers.find, caller.user_id)
    )


@router.post("")
async def open_topup(payments_service: Paying, caller: UserCaller, key: Key, body: NewTopup) -> Facts:
    """Start a top-up: `url` is where to pay; the credits are added when Stripe confirms the payment."""
    topup_id = id_of("topup", caller.user_id, key)

    def opened() -> Topup:
        topups = payments_service.payments.topups
        return topups.open(topup_id, caller.user_id, body.amount, saves_method=body.save_method)

    return _facts(await payments_service.ask(opened)) | {"mode": payments_service.mode}


@router.get("")
async def list_topups(
    payments_service: Paying,
    authority: AnyCaller,
    user: OptionalText = None,
    before: OptionalText = None,
    limit: Limit = 20,
) -> Facts:
    """List own top-ups, newest first; for operators all users'. `next` is the `before` of the next page."""
    found = await payments_service.ask(
        payments_service.payments.topups.newest, whose(authority, user), before, limit + 1
    )
    return page(payments_service, found, limit, _facts)


@router.get("/{topup_id}")
async def show_topup(payments_service: Paying, authority: AnyCaller, topup_id: Named) -> Facts:
    """Show a top-up and its state."""
    topup = await own(
        payments_service, authority, payments_service.payments.topups.find, topup_id, lambda topup: topup.user_id
    )
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
