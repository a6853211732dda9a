"""Open the market lane of a gateway that buys: start its buyer process and the jobs that book its costs."""

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
from market.audits.cost_reporter import AuditCostReporter
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
    audits = AuditCostReporter(market.ask_buyer, ledger.book)
    audits.start()
    stack.push_async_callback(audits.stop)
    owed = OwedReconciler(market.ask_buyer, ledger.book, ledger.look, is_behind)
    owed.start()
    stack.push_async_callback(owed.stop)
    return market
