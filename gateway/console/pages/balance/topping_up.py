"""Top-ups: chosen with the fee shown, paid on Stripe's page, credited when Stripe confirms the payment.

What talks to Stripe is imported only where payments exist: a gateway without them does not load it.
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from accounting.money import UsdAmount, format_usd
from accounting.payments.tables import Payer, Topup, TopupRefund
from accounting.payments.terms import Quote, quote
from gateway.admin import payments
from gateway.admin.credit import Amount
from gateway.admin.payments import AutoTopup, NewTopup, PerDay, list_payments, show_payment
from gateway.app_state import OptionalPayments, Payments
from gateway.console.access import Operator, Viewer, Visitor, refuse_weak_key
from gateway.console.forms import Form, fresh, pressed, submit_once
from gateway.console.live import live_parts
from gateway.console.pages.balance.whose import PATH
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from runtime.times import at

ROWS = 20
_TOPUPS = f"{PATH}/topups"
_NEWEST = 20
_EVERY_S = 2.0

router = APIRouter()

TopupId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class AutoForm(AutoTopup):
    per_day: PerDay
    per_month: UsdAmount


class RefundForm(BaseModel):
    amount: Amount


@router.get("/topups")
async def show(
    visitor: Viewer, payments_service: OptionalPayments, user: Plain = "", before: Plain = ""
) -> Response:
    """Show the visitor's own top-ups; instance admins may also see a user's, or with `all` everyone's."""
    return await _page(visitor, payments_service, user=user, before=before)


@router.post("/topups")
async def open_one(visitor: Viewer, payments_service: Payments) -> Response:
    """Start a top-up and redirect to the page where it is paid."""
    user_id = visitor.caller.user_id
    opened, form = await submit_once(
        visitor, NewTopup, lambda fields, once: payments.open_topup(payments_service, user_id, once, fields)
    )
    if opened is None:
        return await _page(visitor, payments_service, form, status=400)
    if opened.status == "open" and opened.url:
        return go(visitor, opened.url)
    return go(visitor, f"{_TOPUPS}/{opened.id}")


@router.post("/auto")
async def set_auto(visitor: Viewer, payments_service: Payments) -> Response:
    """Turn on automatic purchases with the saved method when credits fall below the threshold."""
    user_id = visitor.caller.user_id
    done, form = await submit_once(
        visitor, AutoForm, lambda fields, _: payments.set_auto(payments_service, user_id, fields)
    )
    if done is None:
        return await _page(visitor, payments_service, auto_form=form, status=400)
    return go(visitor, f"{_TOPUPS}#auto", "Automatic top-up is on.")


@router.post("/auto/off")
async def end_auto(visitor: Viewer, payments_service: Payments) -> Response:
    await pressed(visitor)
    await payments.set_auto(payments_service, visitor.caller.user_id, None)
    return go(visitor, f"{_TOPUPS}#auto", "Automatic top-up is off.")


@router.get("/topups/{topup_id}")
async def show_one(visitor: Viewer, payments_service: Payments, topup_id: TopupId) -> Response:
    return await _one(visitor, payments_service, topup_id, fresh())


@router.post("/topups/{topup_id}/refund")
async def refund(visitor: Operator, payments_service: Payments, topup_id: TopupId) -> Response:
    """Refund bought credits to the card that paid for them."""
    opened, form = await submit_once(
        visitor,
        RefundForm,
        lambda fields, once: payments.open_refund(payments_service, visitor.actor, once, topup_id, fields.amount),
    )
    if opened is None:
        return await _one(visitor, payments_service, topup_id, form, 400)
    return go(
        visitor, f"{_TOPUPS}/{topup_id}", f"The refund of ${format_usd(opened.amount_nano)} is {opened.status}."
    )


@router.get("/paid")
async def came_back(visitor: Viewer, payments_service: Payments, session: Plain = "") -> Response:
    """Show the page that Stripe redirects to after payment. It posts nothing: only Stripe's webhook counts."""
    return page(
        "balance/paid.html",
        visitor,
        **await _newest(visitor, payments_service, session),
        session=session,
        tab="topups",
    )


@router.get("/paid/live")
async def come_back_live(visitor: Viewer, payments_service: Payments, session: Plain = "") -> Response:
    key, parts = f"paid:{visitor.caller.user_id}:{session}", {"paid-state": "balance/paid_state.html"}
    return await live_parts(visitor, key, _EVERY_S, parts, lambda: _newest(visitor, payments_service, session))


@router.get("/cancelled")
async def gave_up(visitor: Viewer, payments_service: Payments) -> Response:
    """Show the page that Stripe redirects to if the user does not pay."""
    return page("balance/cancelled.html", visitor, **await _newest(visitor, payments_service, ""), tab="topups")


async def _newest(visitor: Visitor, payments_service: Payments, session: str) -> dict[str, Any]:
    """Return the visitor's top-up of a Stripe session, or the newest if the session is unknown."""
    found = await asyncio.to_thread(payments_service.payments.topups.newest, visitor.caller.user_id, None, _NEWEST)
    by_page = [topup for topup in found if not topup.is_auto]
    named = [topup for topup in by_page if session and topup.session_id == session]
    return {"topup": next(iter(named or by_page), None)}


async def _page(
    visitor: Visitor,
    payments_service: OptionalPayments,
    form: Form[Any] | None = None,
    *,
    auto_form: Form[Any] | None = None,
    user: str = "",
    before: str = "",
    status: int = 200,
) -> Response:
    if payments_service is None:
        return page("balance/no_payments.html", visitor, tab="topups")
    offers = _offers(payments_service)
    auto = await _auto(visitor, payments_service, offers)
    listed, older, refunds = await _listed(visitor, payments_service, user, before)
    return page(
        "balance/topups.html",
        visitor,
        status,
        form=form or fresh(amount=next(iter(offers))),
        auto_form=auto_form or _auto_form(auto["payer"], offers),
        auto=auto,
        offers=offers,
        listed=listed,
        older=older,
        refunds=refunds,
        user=user,
        is_instance_admin=visitor.is_operator and visitor.may_administer,
        frozen_why=await asyncio.to_thread(payments_service.payments.payers.frozen_why, visitor.caller.user_id),
        tab="topups",
    )


def _offers(payments_service: Payments) -> dict[str, Quote]:
    """Return the prices by the amounts of the form."""
    terms = payments_service.payments.topups.context.terms
    return {format_usd(amount_nano): quote(terms, amount_nano) for amount_nano in terms.topup_amounts_nano}


async def _auto(visitor: Visitor, payments_service: Payments, offers: dict[str, Quote]) -> dict[str, Any]:
    """Return the settings for the page; `is_spent` if one more purchase would exceed the month."""
    payer, spent_nano = await payments.show_auto(payments_service, visitor.caller.user_id)
    is_on = payer.auto_below_nano is not None
    price_nano = next(
        (each.total_nano for each in offers.values() if each.credit_nano == payer.auto_credit_nano), 0
    )
    is_spent = is_on and price_nano > payer.auto_month_nano - spent_nano
    paused_until = at(payer.auto_paused_until_ns) if payer.auto_paused_until_ns else None
    return {
        "payer": payer,
        "spent_nano": spent_nano,
        "paused_until": paused_until,
        "is_on": is_on,
        "is_spent": is_spent,
    }


def _auto_form(payer: Payer, offers: dict[str, Quote]) -> Form[Any]:
    below, amount = payer.auto_below_nano, payer.auto_credit_nano
    return fresh(
        below=None if below is None else format_usd(below),
        amount=format_usd(amount) if amount else next(iter(offers)),
        per_day=payer.auto_day_max,
        per_month=format_usd(payer.auto_month_nano),
    )


async def _listed(
    visitor: Visitor, payments_service: Payments, user: str, before: str
) -> tuple[list[Topup], str | None, dict[str, list[TopupRefund]]]:
    """Return a page of top-ups, the start of the next page, and the refunds of each."""
    listed_user = _whose(visitor, user)
    found, older = await list_payments(
        "topups", payments_service, visitor.authority, listed_user, before or None, ROWS
    )
    refunds: dict[str, list[TopupRefund]] = {}
    for one in await payments_service.ask(
        payments_service.payments.refunds.of_topups, [each.id for each in found]
    ):
        refunds.setdefault(one.topup_id, []).append(one)
    return found, older, refunds


def _whose(visitor: Visitor, user: str) -> str | None:
    """Return the user to list: the visitor by default; None means everyone."""
    if not user or user == visitor.caller.user_id:
        return visitor.caller.user_id
    refuse_weak_key(visitor)
    return None if user == "all" and visitor.is_operator else user


async def _one(
    visitor: Visitor, payments_service: Payments, topup_id: str, form: Form[Any], status: int = 200
) -> Response:
    """Show one top-up. Raises NotFound, also for another user's."""
    topup = await show_payment("topups", payments_service, visitor.authority, topup_id)
    refunds = await payments_service.ask(payments_service.payments.refunds.of_topups, [topup_id])
    return page(
        "balance/topup.html",
        visitor,
        status,
        topup=topup,
        refunds=refunds,
        form=form,
        may_refund=visitor.is_operator and visitor.may_administer and topup.status == "paid",
        tab="topups",
    )
