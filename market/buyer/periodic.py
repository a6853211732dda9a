"""The buyer's periodic tasks; what the disk refuses now is tried again next time."""

import asyncio
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError

from market.buyer.marketplace_client import BuyerMarketplaceClient
from market.buyer.shop import Shop
from market.errors import IdentityInvalid
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Unreachable
from runtime.workers.logbook import note

_MEET_EVERY_S = 30.0
_MET_EVERY_S = 3600.0


async def again(name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` every `every_s` seconds until cancelled; `work` may raise SQLAlchemyError."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except SQLAlchemyError as error:
            note("held_up", work=name, error=type(error).__name__)


async def meet(marketplace: BuyerMarketplaceClient, shop: Shop) -> None:
    """Keep the marketplace's identity and keys up to date, until cancelled."""
    while True:
        pause_s = _MET_EVERY_S
        try:
            await marketplace.meet()
            shop.trusted |= {marketplace.identity or ""}
        except (Unreachable, MarketplaceRefused, IdentityInvalid, SQLAlchemyError) as error:
            note("marketplace_away", error=str(error))
            pause_s = _MEET_EVERY_S
        await asyncio.sleep(pause_s)
