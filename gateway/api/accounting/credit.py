"""/accounting/v1/credits: granted by instance admins, and moved by users to their organization's balance."""

from fastapi import APIRouter

from gateway.admin import credit
from gateway.admin.credit import IntoPool, NewCredit, NewPromo, OutOfPool
from gateway.admin.fields import Facts
from gateway.api.accounting.dependencies import Access, Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import Operator
from gateway.billing.asked import id_of

router = APIRouter(prefix="/accounting/v1/credits", route_class=KeyedRoute)


@router.post("")
async def give(operator: Operator, access: Access, key: Key, body: NewCredit) -> Facts:
    """Give credits to a user or an organization balance; the user's debts are paid from them first."""
    return (await credit.give(access, id_of("credit", operator.actor.name, key), body)).answer()


@router.post("/promo")
async def give_promo(operator: Operator, access: Access, key: Key, body: NewPromo) -> Facts:
    """Give a user promotional credits that expire."""
    return (await credit.give_promo(access, id_of("promo", operator.actor.name, key), body)).answer()


@router.post("/pool")
async def fund_pool(access: Access, caller: UserCaller, key: Key, body: IntoPool) -> Facts:
    """Transfer own credits to the organization balance; only an operator can return them."""
    move_id = id_of("pool", caller.user_id, key)
    return (await credit.fund_pool(access, move_id, caller, body.amount)).answer()


@router.post("/pool/return")
async def return_from_pool(operator: Operator, access: Access, key: Key, body: OutOfPool) -> Facts:
    """Return credits of an organization balance to a user; the user's debts are paid from them first."""
    move_id = id_of("pool-return", operator.actor.name, key)
    return (await credit.return_from_pool(access, move_id, body)).answer()
