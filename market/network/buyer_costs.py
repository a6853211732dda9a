"""What the gateway books from its buyer's process: how it asks, and how often."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from accounting.errors import LedgerError
from accounting.ledger.postings import Posted, Posting
from runtime.errors import ServiceError
from runtime.workers.supervisor import WorkerUnavailable

log = structlog.get_logger(__name__)

PROVIDER = "market"
_EVERY_S = 15.0
_PAUSE_S_MAX = 240.0

AskBuyer = Callable[[str, str], Awaitable[bytes]]
"""Ask the buyer's process: method, target. Raises OSError, EOFError, TimeoutError, WorkerUnavailable."""
Book = Callable[[Posting], Awaitable[Posted]]


async def keep_booking(what: str, book: Callable[[], Awaitable[int]]) -> None:
    """Call `book` every few seconds until cancelled, and less often while the buyer or the ledger fails."""
    pause_s = _EVERY_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
        try:
            await book()
            pause_s = _EVERY_S
        except (OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable) as error:
            log.info("market.buyer_unknown", what=what, reason=type(error).__name__)
        except (LedgerError, ServiceError) as error:
            log.warning("market.not_posted", what=what, reason=str(error))
