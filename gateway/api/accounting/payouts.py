"""/accounting/v1/sellers and payouts: who sells says where they are paid, and asks for what they have earned."""

from typing import Any, TypeAlias

from fastapi import APIRouter

from accounting.money import UsdAmount, format_usd
from accounting.payments.errors import PaymentNotFound
from accounting.payments.tables import Payout
from gateway.api.accounting.asking import Key, Paying, Person, Till, id_of
from gateway.api.fields import Body, Named

router = APIRouter(prefix="/accounting/v1")

_Facts: TypeAlias = dict[str, Any]


class NewPayout(Body):
    amount: UsdAmount


@router.post("/sellers/onboard")
async def onboard(till: Paying, person: Person, key: Key) -> _Facts:
    """The answer's `url` is a page of Stripe's that lasts minutes; another key makes another one."""
    link_id = id_of("link", person.user_id, key)
    url = await till.ask(till.payments.sellers.onboard, person.user_id, link_id)
    return {"url": url, "mode": till.mode}


@router.get("/sellers/me")
async def show_account(till: Paying, person: Person) -> _Facts:
    account = await till.ask(till.payments.sellers.find, person.user_id)
    return {"ready": account.is_ready, "reason": account.frozen_why or account.reason, "mode": till.mode}


@router.post("/payouts")
async def open_payout(till: Paying, person: Person, key: Key, wanted: NewPayout) -> _Facts:
    payout_id = id_of("payout", person.user_id, key)
    payout = await till.ask(till.payments.payouts.open, payout_id, person.user_id, wanted.amount)
    return _facts(till, payout)


@router.get("/payouts/{payout_id}")
async def show_payout(till: Paying, person: Person, payout_id: Named) -> _Facts:
    def found() -> Payout:
        payout = till.payments.payouts.find(payout_id)
        if payout.seller_id != person.user_id:
            raise PaymentNotFound(f"there is no payout {payout_id}")
        return payout

    return _facts(till, await till.ask(found))


def _facts(till: Till, payout: Payout) -> _Facts:
    return {
        "id": payout.id,
        "amount": format_usd(payout.amount_nano),
        "status": payout.status,
        "attempt": payout.attempt,
        "reason": payout.reason,
        "mode": till.mode,
    }
