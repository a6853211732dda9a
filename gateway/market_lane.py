"""Open the market lane of a gateway that buys: start its buyer process and the job that books its costs."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from accounting.metering.tokenizers import Pinned, Tokenizers
from gateway.billing.ledger_service import LedgerService
from gateway.billing.metering.factory import write_versions
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Lane
from gateway.lanes.market.lane import MarketLane
from market.buyer.owed_reconciler import OwedReconciler
from market.buyer.program import buyer_worker
from market.settings.buyer import MarketSettings


async def open_market(
    settings: MarketSettings,
    folder: Path,
    ledger: LedgerService,
    tokenizers: Tokenizers,
    named: Mapping[str, Pinned],
    is_behind: Callable[[], bool],
    stack: AsyncExitStack,
    write: Callable[[], Session],
    aliases: Callable[[], Aliases],
) -> Lane:
    """Return the lane, connected to a buyer process that is starting.

    `folder` is the market's folder; `stack` stops both. `named` are the admin's tokenizers by SHA-256. `is_behind`
    says whether ended requests are missing in the ledger. From now on the ledger gets the cost of audits, and what a
    dead buyer process still owed.
    """
    note_prices = partial(write_versions, write=write)
    buyer = buyer_worker(settings, folder, named.values())
    market = MarketLane(settings, buyer, note_prices, named, aliases=aliases)
    stack.push_async_callback(market.stop)
    await market.start()
    tokenizers.look_also(market.tokenizer_of)
    owed = OwedReconciler(market.ask_buyer, ledger.book, ledger.look, is_behind)
    stack.push_async_callback(_end, asyncio.create_task(owed.run(), name="market-owed"))
    return market


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
