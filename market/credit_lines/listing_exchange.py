"""Exchange listings with partners: each gateway asks the other for what it knows, and sends what it knows."""

import asyncio
import logging
import random

from sqlalchemy.exc import SQLAlchemyError

from market.credit_lines.partners import Partners
from market.errors import MarketError
from market.network.gossip import EVERY_S, Gossip

_log = logging.getLogger(__name__)
_AT_ONCE_MAX = 64
_EXCHANGE_S = 30.0


async def exchange_with_partners(partners: Partners, gossip: Gossip, every_s: float = EVERY_S) -> None:
    """Run until cancelled.

    New partners are included without a restart; an absent one delays others by half a minute.
    """
    silent: set[str] = set()
    gate = asyncio.Semaphore(_AT_ONCE_MAX)

    async def exchange(url: str) -> None:
        async with gate:
            try:
                async with asyncio.timeout(_EXCHANGE_S):
                    await gossip.exchange(url)
            except (MarketError, SQLAlchemyError, TimeoutError) as error:
                if url not in silent:
                    _log.warning("no gossip with the partner at %s: %s", url, type(error).__name__)
                silent.add(url)
            else:
                silent.discard(url)

    while True:
        try:
            await asyncio.gather(*map(exchange, await asyncio.to_thread(lambda: partners.urls)))
        except (MarketError, OSError) as error:
            _log.warning("credit lines cannot be read: %s", error)
        await asyncio.sleep(every_s * (0.75 + random.random() / 2))  # noqa: S311 - only so that not all ask at once
