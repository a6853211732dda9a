"""/market/v1/sellers: which identities sell for an account, what they earned, and when it is available."""

from fastapi import APIRouter

from gateway.admin import marketplace as marketplace_admin
from gateway.admin.fields import Facts
from gateway.admin.marketplace_requests import Forfeited, NewSeller, Suspended
from gateway.api.accounting.dependencies import Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import Operator
from gateway.app_state import Marketplace
from gateway.parameters import Named

keyed = APIRouter(prefix="/market/v1/sellers", route_class=KeyedRoute)
plain = APIRouter(prefix="/market/v1/sellers")


@keyed.post("")
async def register(marketplace: Marketplace, caller: UserCaller, _: Key, body: NewSeller) -> Facts:
    """Let an identity sell for the caller's account, which receives its earnings from now on."""
    statements = [raw.encode() for raw in body.statements]
    arguments = caller.user_id, body.identity, body.key, body.proof, statements
    await marketplace.ask(marketplace.sellers.register, *arguments)
    return {"account": caller.user_id, "identity": body.identity}


@plain.get("/me")
async def show_seller(marketplace: Marketplace, caller: UserCaller) -> Facts:
    """Show the caller's account, by the id in a seller's proof; its selling identities, and their earnings."""
    return await marketplace_admin.show_seller(marketplace, caller.user_id)


@keyed.put("/{user}/suspended")
async def suspend(marketplace: Marketplace, operator: Operator, _: Key, user: Named, body: Suspended) -> Facts:
    """Suspend or reinstate a seller: while suspended it gets no allocations, and its earnings stay pending."""
    return await marketplace_admin.suspend(marketplace, operator, user, body.why)


@keyed.post("/{user}/forfeit")
async def forfeit(marketplace: Marketplace, operator: Operator, _: Key, user: Named, body: Forfeited) -> Facts:
    """On proof of fraud, return pending earnings to the buyers, and suspend the seller."""
    return await marketplace_admin.forfeit(marketplace, operator, user, body.why)
