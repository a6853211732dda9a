"""Access to the selling pages, and what several of them show."""

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends

from accounting.money import format_usd
from gateway.admin.idle import Idle, IdleWatch
from gateway.console.access import Viewer, Visitor
from gateway.errors import RoleForbids
from runtime.errors import NotFound

if TYPE_CHECKING:
    from market.marketplace.marketplace import Marketplace

PATH = "/console/selling"


async def _seller(visitor: Viewer) -> Visitor:
    if visitor.standings.isdisjoint(("seller", "operator")):
        role = visitor.caller.role
        raise RoleForbids(f"Only sellers and instance admins can do this; your role is {role}.")
    return visitor


Seller = Annotated[Visitor, Depends(_seller)]
"""A seller of this marketplace or an instance admin. Also raises RoleForbids."""


async def idle_now(visitor: Visitor) -> Idle:
    """Return how idle the gateway is, as reported to the agent."""
    watch: IdleWatch = visitor.request.app.state.idle
    return await watch.state()


def marketplace_of(visitor: Visitor, remedy: str) -> "Marketplace":
    """Return the marketplace that this gateway operates. Raises NotFound with the remedy."""
    if visitor.services.marketplace is None:
        raise NotFound(f"This gateway is not a marketplace. {remedy}")
    return visitor.services.marketplace


def price(amount_nano: int) -> str:
    """Format dollars with all digits: a price per million tokens must not be rounded."""
    return f"${format_usd(amount_nano)}"
