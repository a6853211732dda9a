"""Top-ups: chosen with the fee shown, paid on Stripe's page, credited when Stripe confirms the payment.

Payment code is imported only where payments exist: a gateway without them does not load it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from accounting.money import UsdAmount, format_usd, parse_usd
from gateway.api.accounting.dependencies import Facts
from gateway.console.access import Operator, Viewer, Visitor
from gateway.console.forms import Form, read_form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.balance.form_submission import Button, Once, fresh, refuse_weak_key, submit
from gateway.console.pages.balance.whose import PATH
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from gateway.errors import FeatureUnsupported

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService

ROWS = 20
_TOPUPS = f"{PATH}/topups"
_NEWEST = 20
_EVERY_S = 2.0

router = APIRouter()

TopupId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class TopupForm(BaseModel):
    amount: UsdAmount
    save_method: bool = False
    once: Once


class AutoForm(BaseModel):
    below: UsdAmount
    amount: UsdAmount
    per_day: Annotated[int, Field(ge=1, le=24)]
    per_month: UsdAmount
    once: Once


class RefundForm(BaseModel):
    amount: Annotated[UsdAmount, Field(gt=0)]
    once: Once


@dataclass(frozen=True, slots=True)
class Offer:
    """An amount of credits and its cost; `amount` has the format of the form."""

    amount: str
    credit_nano: int
    fee_nano: int

    @property
    def total_nano(self) -> int:
        return self.credit_nano + self.fee_nano


def payments_service_of(visitor: Visitor) -> "PaymentsService":
    """Return the payments facade. Raises FeatureUnsupported."""
    payments_service = visitor.services.payments_service
    if payments_service is None:
        raise FeatureUnsupported(
            "Payments are not set up. The owner enables them with payments.secret_key and webhook_secrets."
        )
    return payments_service


@router.get("/topups")
async def show(visitor: Viewer, user: Plain = "", before: Plain = "") -> Response:
    """Show the visitor's own top-ups; instance admins may also see a user's, or with `all` everyone's."""
    return await _page(visitor, user=user, before=before)


@router.post("/topups")
async def open_one(request: Request, visitor: Viewer) -> Response:
    """Start a top-up and redirect to the page where it is paid."""
    from gateway.api.accounting.topups import NewTopup, open_topup

    payments_service = payments_service_of(visitor)
    form = await read_form(request, visitor, TopupForm)

    async def work(fields: TopupForm) -> Facts:
        new = NewTopup.model_construct(amount=fields.amount, save_method=fields.save_method)
        return await open_topup(payments_service, visitor.caller, fields.once, new)

    opened, form = await submit(form, work)
    if opened is None:
        return await _page(visitor, form, status=400)
    if opened["status"] == "open" and opened["url"]:
        return go(visitor, opened["url"])
    return go(visitor, f"{_TOPUPS}/{opened['id']}")


@router.post("/auto")
async def set_auto(request: Request, visitor: Viewer) -> Response:
    """Turn on automatic purchases with the saved method when credits fall below the threshold."""
    from gateway.api.accounting import topups

    payments_service = payments_service_of(visitor)
    form = await read_form(request, visitor, AutoForm)

    async def work(fields: AutoForm) -> Facts:
        values = topups.AutoTopup.model_construct(
            below=fields.below, amount=fields.amount, per_day=fields.per_day, per_month=fields.per_month
        )
        return await topups.set_auto(payments_service, visitor.caller, fields.once, values)

    done, form = await submit(form, work)
    if done is None:
        return await _page(visitor, auto_form=form, status=400)
    return go(visitor, f"{_TOPUPS}#auto", "Automatic top-up is on.")


@router.post("/auto/off")
async def end_auto(request: Request, visitor: Viewer) -> Response:
    from gateway.api.accounting import topups

    payments_service = payments_service_of(visitor)
    await read_form(request, visitor, Button)
    await topups.end_auto(payments_service, visitor.caller)
    return go(visitor, f"{_TOPUPS}#auto", "Automatic top-up is off.")


@router.get("/topups/{topup_id}")
async def show_one(visitor: Viewer, topup_id: TopupId) -> Response:
    return await _one(visitor, topup_id, fresh())


@router.post("/topups/{topup_id}/refund")
async def refund(request: Request, visitor: Operator, topup_id: TopupId) -> Response:
    """Refund bought credits to the card that paid for them."""
    from gateway.api.accounting.refunds import NewRefund, open_refund

    payments_service = payments_service_of(visitor)
    form = await read_form(request, visitor, RefundForm)

    async def work(fields: RefundForm) -> Facts:
        new = NewRefund.model_construct(topup=topup_id, amount=fields.amount)
        return await open_refund(payments_service, visitor.authority, fields.once, new)

    opened, form = await submit(form, work)
    if opened is None:
        return await _one(visitor, topup_id, form, 400)
    return go(visitor, f"{_TOPUPS}/{topup_id}", f"The refund of ${opened['amount']} is {opened['status']}.")


@router.get("/paid")
async def came_back(visitor: Viewer, session: Plain = "") -> Response:
    """Show the page that Stripe redirects to after payment. It posts nothing: only Stripe's webhook counts."""
    payments_service_of(visitor)
    return page("balance/paid.html", visitor, **await _newest(visitor, session), session=session, tab="topups")


@router.get("/paid/live")
async def come_back_live(request: Request, visitor: Viewer, session: Plain = "") -> Response:
    payments_service_of(visitor)

    async def render() -> list[Region | Points]:
        return [Region("paid-state", "balance/paid_state.html", await _newest(visitor, session))]

    key = f"paid:{visitor.caller.user_id}:{session}"
    return await live_response(request, visitor, LivePage(key, render, _EVERY_S))


@router.get("/cancelled")
async def gave_up(visitor: Viewer) -> Response:
    """Show the page that Stripe redirects to if the user does not pay."""
    payments_service_of(visitor)
    return page("balance/cancelled.html", visitor, **await _newest(visitor, ""), tab="topups")


async def _newest(visitor: Visitor, session: str) -> dict[str, Any]:
    """Return the visitor's top-up of a Stripe session, or the newest if the session is unknown."""
    payments_service = payments_service_of(visitor)
    found = await asyncio.to_thread(payments_service.payments.topups.newest, visitor.caller.user_id, None, _NEWEST)
    by_page = [topup for topup in found if not topup.is_auto]
    named = [topup for topup in by_page if session and topup.session_id == session]
    return {"topup": next(iter(named or by_page), None)}


async def _page(
    visitor: Visitor,
    form: Form[Any] | None = None,
    *,
    auto_form: Form[Any] | None = None,
    user: str = "",
    before: str = "",
    status: int = 200,
) -> Response:
    payments_service = visitor.services.payments_service
    if payments_service is None:
        return page("balance/no_payments.html", visitor, tab="topups")
    offers = await _offers(payments_service)
    auto = await _auto(visitor, payments_service, offers)
    listed, refunds = await _listed(visitor, user, before)
    return page(
        "balance/topups.html",
        visitor,
        status,
        form=form or fresh(amount=offers[0].amount),
        auto_form=auto_form or _auto_form(auto, offers),
        auto=auto,
        offers=offers,
        listed=listed["data"],
        older=listed["next"],
        refunds=refunds,
        user=user,
        is_instance_admin=visitor.is_operator and visitor.may_administer,
        frozen_why=await asyncio.to_thread(payments_service.payments.payers.frozen_why, visitor.caller.user_id),
        tab="topups",
    )


async def _offers(payments_service: "PaymentsService") -> list[Offer]:
    from accounting.payments.terms import quote

    terms = payments_service.payments.topups.context.terms
    quotes = [quote(terms, amount_nano) for amount_nano in terms.topup_amounts_nano]
    return [Offer(format_usd(one.credit_nano), one.credit_nano, one.fee_nano) for one in quotes]


async def _auto(visitor: Visitor, payments_service: "PaymentsService", offers: list[Offer]) -> Facts:
    """Return the API's facts with amounts for pages; `is_spent` if one more purchase would exceed the month."""
    from gateway.api.accounting import topups

    facts = await topups.show_auto(payments_service, visitor.caller)
    named = ("below", "amount", "per_month", "spent_this_month")
    nano = {f"{name}_nano": facts[name] and parse_usd(facts[name]) for name in named}
    is_on = facts["below"] is not None
    left_nano = nano["per_month_nano"] - nano["spent_this_month_nano"]
    price_nano = next((each.total_nano for each in offers if each.credit_nano == nano["amount_nano"]), 0)
    return facts | nano | {"is_on": is_on, "is_spent": is_on and price_nano > left_nano}


def _auto_form(auto: Facts, offers: list[Offer]) -> Form[Any]:
    amount = auto["amount"] or offers[0].amount
    return fresh(below=auto["below"], amount=amount, per_day=auto["per_day"], per_month=auto["per_month"])


async def _listed(visitor: Visitor, user: str, before: str) -> tuple[Facts, dict[str, list[Facts]]]:
    """Return a page of top-ups, and the refunds of each."""
    from gateway.api.accounting.refunds import refunds_of
    from gateway.api.accounting.topups import list_topups

    payments_service, authority = payments_service_of(visitor), visitor.authority
    listed_user = _whose(visitor, user)
    listed = await list_topups(payments_service, authority, user=listed_user, before=before or None, limit=ROWS)
    refunds: dict[str, list[Facts]] = {}
    for one in await refunds_of(payments_service, [topup["id"] for topup in listed["data"]]):
        refunds.setdefault(one["topup"], []).append(_in_nano(one))
    return listed | {"data": [_in_nano(one) for one in listed["data"]]}, refunds


def _whose(visitor: Visitor, user: str) -> str | None:
    """Return the user to list: the visitor by default; None means everyone."""
    if not user or user == visitor.caller.user_id:
        return visitor.caller.user_id
    refuse_weak_key(visitor)
    return None if user == "all" and visitor.is_operator else user


async def _one(visitor: Visitor, topup_id: str, form: Form[Any], status: int = 200) -> Response:
    """Show one top-up. Raises NotFound, also for another user's."""
    from gateway.api.accounting.refunds import refunds_of
    from gateway.api.accounting.topups import show_topup

    payments_service, authority = payments_service_of(visitor), visitor.authority
    topup = _in_nano(await show_topup(payments_service, authority, topup_id))
    refunds = [_in_nano(one) for one in await refunds_of(payments_service, [topup_id])]
    return page(
        "balance/topup.html",
        visitor,
        status,
        topup=topup,
        refunds=refunds,
        form=form,
        may_refund=visitor.is_operator and visitor.may_administer and topup["status"] == "paid",
        tab="topups",
    )


def _in_nano(facts: Facts) -> Facts:
    """Return the API's facts with amounts and times for pages."""
    amounts = {
        f"{name}_nano": parse_usd(facts[name]) for name in ("credits", "fee", "total", "amount") if name in facts
    }
    created_ns = int(datetime.fromisoformat(facts["created"]).timestamp() * 10**9)
    return facts | amounts | {"created_ns": created_ns}
