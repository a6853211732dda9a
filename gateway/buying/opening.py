"""The market's lane of a gateway that buys: its buyer's process, and what the books hear of it."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from accounting.metering.tokenizers import Tokenizers
from gateway.auditing.booking import AuditBooking
from gateway.buying.booking import OwedBooking
from gateway.buying.program import buyer_worker
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Lane
from gateway.lanes.market import MarketLane
from gateway.metering.opening import write_versions
from gateway.records.books import Books
from gateway.settings.market import MarketSettings


async def open_market(
    settings: MarketSettings,
    folder: Path,
    books: Books,
    tokenizers: Tokenizers,
    is_behind: Callable[[], bool],
    stack: AsyncExitStack,
    write: Callable[[], Session],
    aliases: Callable[[], Aliases],
) -> Lane:
    """The lane, listening to a buyer that is being started; `folder` is the market's, and `stack` ends both.

    `is_behind` says whether ended requests are missing in the ledger. Costs of audits, and what a buyer that died
    still owed, are booked from here on.
    """
    note_prices = partial(write_versions, write=write)
    market = MarketLane(
        settings, buyer_worker(settings, folder), note_prices, folder / "tokenizers", aliases=aliases
    )
    stack.push_async_callback(market.stop)
    await market.start()
    tokenizers.look_also(market.tokenizer_of)
    audits = AuditBooking(market.ask_buyer, books.book)
    audits.start()
    stack.push_async_callback(audits.stop)
    owed = OwedBooking(market.ask_buyer, books.book, books.look, is_behind)
    owed.start()
    stack.push_async_callback(owed.stop)
    return market
