"""/accounting/v1/topups and refunds: credits for money, and back. Amounts are decimal strings in USD."""

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query

from accounting.money import UsdAmount, format_usd
from accounting.payments.errors import PaymentNotFound
from accounting.payments.tables import Topup, TopupRefund
from accounting.payments.terms import quote
from gateway.api.accounting.asking import Key, Paying, Person, Till, id_of
from gateway.api.authority import Operator
from gateway.api.fields import Body, Named, Text

router = APIRouter(prefix="/accounting/v1")

_Facts: TypeAlias = dict[str, Any]


class NewTopup(Body):
    amount: UsdAmount
    save_method: bool = False
    """Keep the method of payment, for automatic top-ups."""


class NewRefund(Body):
    topup: Text
    amount: UsdAmount


class AutoTopup(Body):
    """Buy `amount` with the saved method whenever fewer credits than `below` are left."""

    below: UsdAmount
    amount: UsdAmount


@router.get("/topups/quote")
async def quote_topup(till: Paying, amount: Annotated[UsdAmount, Query()]) -> _Facts:
    """What a top-up costs, its fee included, before anybody pays."""
    paid = await till.ask(quote, till.payments.topups.desk.terms, amount)
    return {
        "credits": format_usd(paid.credit_nano),
        "fee": format_usd(paid.fee_nano),
        "total": format_usd(paid.total_nano),
        "mode": till.mode,
    }


@router.post("/topups")
async def open_topup(till: Paying, person: Person, key: Key, wanted: NewTopup) -> _Facts:
    """The answer's `url` is where it is paid; credits are there when Stripe says so, not before."""
    topup_id = id_of("topup", person.user_id, key)

    def opened() -> Topup:
        topups = till.payments.topups
        return topups.open(topup_id, person.user_id, wanted.amount, saves_method=wanted.save_method)

    return _topup_facts(till, await till.ask(opened))


@router.get("/topups/{topup_id}")
async def show_topup(till: Paying, person: Person, topup_id: Named) -> _Facts:
    def found() -> Topup:
        topup = till.payments.topups.find(topup_id)
        if topup.user_id != person.user_id:
            raise PaymentNotFound(f"there is no top-up {topup_id}")
        return topup

    return _topup_facts(till, await till.ask(found))


@router.put("/topups/auto")
async def set_auto(till: Paying, person: Person, wanted: AutoTopup) -> _Facts:
    await till.ask(till.payments.payers.top_up_below, person.user_id, wanted.below, wanted.amount)
    return {"below": format_usd(wanted.below), "amount": format_usd(wanted.amount), "mode": till.mode}


@router.delete("/topups/auto")
async def end_auto(till: Paying, person: Person) -> _Facts:
    await till.ask(till.payments.payers.top_up_no_more, person.user_id)
    return {"below": None, "amount": None, "mode": till.mode}


@router.post("/refunds")
async def open_refund(till: Paying, operator: Operator, key: Key, wanted: NewRefund) -> _Facts:
    """Credits go back to the card that they came from. For admins: credits are not a way to move money."""
    refund_id = id_of("refund", operator.actor.name, key)
    refund = await till.ask(till.payments.refunds.open, refund_id, wanted.topup, wanted.amount)
    return _refund_facts(till, refund)


@router.get("/refunds/{refund_id}")
async def show_refund(till: Paying, person: Person, refund_id: Named) -> _Facts:
    """For whose credits they were."""

    def found() -> TopupRefund:
        refund = till.payments.refunds.find(refund_id)
        if refund.user_id != person.user_id:
            raise PaymentNotFound(f"there is no refund {refund_id}")
        return refund

    return _refund_facts(till, await till.ask(found))


def _topup_facts(till: Till, topup: Topup) -> _Facts:
    return {
        "id": topup.id,
        "credits": format_usd(topup.credit_nano),
        "fee": format_usd(topup.fee_nano),
        "total": format_usd(topup.credit_nano + topup.fee_nano),
        "status": topup.status,
        "url": topup.url,
        "reason": topup.reason,
        "mode": till.mode,
    }


def _refund_facts(till: Till, refund: TopupRefund) -> _Facts:
    return {
        "id": refund.id,
        "topup": refund.topup_id,
        "amount": format_usd(refund.amount_nano),
        "status": refund.status,
        "reason": refund.reason,
        "mode": till.mode,
    }
