"""/market/v1/sellers: which identities sell for an account, what they earned, and when it is available."""

import asyncio

from fastapi import APIRouter
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import available
from accounting.money import format_usd
from gateway.api.accounting.dependencies import Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import Authority, Operator
from gateway.api.fields import Named
from gateway.api.marketplace.dependencies import Facts, Open
from gateway.api.marketplace.forms import Forfeited, NewSeller, Suspended
from market.marketplace.marketplace import Marketplace

keyed = APIRouter(prefix="/market/v1/sellers", route_class=KeyedRoute)
plain = APIRouter(prefix="/market/v1/sellers")


@keyed.post("")
async def register(marketplace: Open, caller: UserCaller, _: Key, body: NewSeller) -> Facts:
    """Let an identity sell for the caller's account, which receives its earnings from now on."""
    statements = [raw.encode() for raw in body.statements]
    arguments = caller.user_id, body.identity, body.key, body.proof, statements
    await marketplace.ask(marketplace.sellers.register, *arguments)
    return {"account": caller.user_id, "identity": body.identity}


@plain.get("/me")
async def show_seller(marketplace: Open, caller: UserCaller) -> Facts:
    """Show the caller's account, by the id in a seller's proof; its selling identities, and their earnings.

    `lacking` is what a new seller still has to show; all of it is zero after the new-seller period.
    """
    account = caller.user_id
    earned = await marketplace.ask(_earned, marketplace, account)
    probation = await marketplace.ask(marketplace.earnings.probation_of, account)
    return {
        "account": account,
        "identities": await marketplace.ask(marketplace.sellers.identities_of, account),
        "suspended": await marketplace.ask(marketplace.sellers.suspended_reason, account),
        "earned": {name: format_usd(nano) for name, nano in earned.items()},
        "probation": not probation.is_over,
        "lacking": {"jobs": probation.jobs, "buyers": probation.buyers, "days": probation.days},
    }


def _earned(marketplace: Marketplace, user_id: str) -> dict[str, int]:
    codes = {
        "maturing": chart.seller_maturing(user_id),
        "payable": chart.seller_payable(user_id),
        "reserve": chart.seller_reserve(user_id),
        "owed": chart.seller_receivable(user_id),
    }
    session: Session
    with marketplace.context.read() as session:
        found = available(session, list(codes.values()))
    return {name: found[code] for name, code in codes.items()}


@keyed.put("/{user}/suspended")
async def suspend(marketplace: Open, operator: Operator, _: Key, user: Named, body: Suspended) -> Facts:
    """Suspend or reinstate a seller: while suspended it gets no allocations, and its earnings stay pending."""
    facts: Facts = {"seller": user, "suspended": body.why}
    await _write_down(operator, "market.suspend", user, facts)
    await marketplace.ask(marketplace.sellers.suspend, user, body.why)
    return facts


@keyed.post("/{user}/forfeit")
async def forfeit(marketplace: Open, operator: Operator, _: Key, user: Named, body: Forfeited) -> Facts:
    """On proof of fraud, return pending earnings to the buyers, and suspend the seller."""
    await _write_down(operator, "market.forfeit", user, {"seller": user, "why": body.why})
    sales = await marketplace.ask(marketplace.forfeiture.forfeit, user, body.why)
    return {"seller": user, "why": body.why, "sales": sales}


async def _write_down(operator: Authority, action: str, user: str, facts: Facts) -> None:
    add = operator.directory.audit.add
    await asyncio.to_thread(add, operator.actor, action, f"user:{user}", facts)
