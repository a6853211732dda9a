"""/accounting/v1/topups: credits for money. Amounts are decimal strings in USD."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import Payer, Topup
from accounting.payments.terms import AUTO_DAY_MAX, AUTO_MONTH_NANO, quote
from gateway.api.accounting.dependencies import Facts, Key, User
from gateway.api.accounting.keyed import KeyedRoute, id_of
from gateway.api.accounting.payment_dependencies import Limit, Paying, own, page, whose
from gateway.api.authority import AnyCaller
from gateway.api.fields import Body, Named, Wanted
from runtime.times import at

router = APIRouter(prefix="/accounting/v1/topups", route_class=KeyedRoute)

PER_DAY_MAX = 24


class NewTopup(Body):
    amount: UsdAmount
    save_method: bool = False
    """Keep the method of payment, for automatic top-ups."""


class AutoTopup(Body):
    """Buy `amount` with the saved method whenever fewer credits than `below` are left, at most `per_day` times.

    What is paid so in a UTC month, fees included, is at most `per_month`.
    """

    below: UsdAmount
    amount: UsdAmount
    per_day: Annotated[int, Field(ge=1, le=PER_DAY_MAX)] = AUTO_DAY_MAX
    per_month: UsdAmount = AUTO_MONTH_NANO


@router.get("/quote")
async def quote_topup(till: Paying, _: AnyCaller, amount: Annotated[UsdAmount, Query()]) -> Facts:
    """Quote a top-up with its fee."""
    paid = await till.ask(quote, till.payments.topups.context.terms, amount)
    return {
        "credits": format_usd(paid.credit_nano),
        "fee": format_usd(paid.fee_nano),
        "total": format_usd(paid.total_nano),
        "mode": till.mode,
    }


@router.get("/auto")
async def show_auto(till: Paying, person: User) -> Facts:
    """Show the settings of automatic top-ups."""
    payer = await till.ask(till.payments.payers.find, person.user_id)
    spent_nano = await till.ask(till.payments.topups.spent_unasked, person.user_id)
    return _auto_facts(till.mode, payer) | {
        "spent_this_month": format_usd(spent_nano),
        "has_method": payer.method_id is not None,
        "failures": payer.auto_failures,
        "paused_until": at(payer.auto_paused_until_ns) if payer.auto_paused_until_ns else None,
    }


@router.put("/auto")
async def set_auto(till: Paying, person: User, _: Key, wanted: AutoTopup) -> Facts:
    """Turn on automatic top-ups below a threshold."""
    payers = till.payments.payers
    terms = (wanted.below, wanted.amount, wanted.per_day, wanted.per_month)
    await till.ask(payers.top_up_below, person.user_id, *terms)
    return _auto_facts(till.mode, await till.ask(payers.find, person.user_id))


@router.delete("/auto")
async def end_auto(till: Paying, person: User) -> Facts:
    """Turn automatic top-ups off."""
    await till.ask(till.payments.payers.top_up_no_more, person.user_id)
    return _auto_facts(till.mode, await till.ask(till.payments.payers.find, person.user_id))


@router.post("")
async def open_topup(till: Paying, person: User, key: Key, wanted: NewTopup) -> Facts:
    """Start a top-up: `url` is where to pay; the credits are booked when Stripe confirms the payment."""
    topup_id = id_of("topup", person.user_id, key)

    def opened() -> Topup:
        topups = till.payments.topups
        return topups.open(topup_id, person.user_id, wanted.amount, saves_method=wanted.save_method)

    return _facts(await till.ask(opened)) | {"mode": till.mode}


@router.get("")
async def list_topups(
    till: Paying, authority: AnyCaller, user: Wanted = None, before: Wanted = None, limit: Limit = 20
) -> Facts:
    """List own top-ups, newest first; for operators all users'. `next` is the `before` of the next page."""
    found = await till.ask(till.payments.topups.newest, whose(authority, user), before, limit + 1)
    return page(till, found, limit, _facts)


@router.get("/{topup_id}")
async def show_topup(till: Paying, authority: AnyCaller, topup_id: Named) -> Facts:
    """Show a top-up and its state."""
    topup = await own(till, authority, till.payments.topups.find, topup_id, lambda topup: topup.user_id)
    return _facts(topup) | {"mode": till.mode}


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
