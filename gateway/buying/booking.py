"""What sellers are owed beyond what requests were booked with, from the buyer's process into the books.

A caller who hangs up is charged what had left by then; the seller has delivered what had reached us. An answer
that was wanted whole and broke off is charged to nobody, and owed for as far as it came. And of a request whose
gateway was killed there is no usage row at all. The buyer tells every request until it hears that it is booked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from urllib.parse import quote

import msgspec
import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.errors import BooksUnavailable, LedgerError
from accounting.ledger.postings import Posted, Posting
from accounting.rules.variances import owed_beyond
from accounting.tables import usage_table
from gateway.buying.owed import OWED_AT_ONCE, Owed, OwedPage
from gateway.cloud_worker.supervisor import CloudWorkerUnavailable
from gateway.errors import GatewayError

log = structlog.get_logger(__name__)

EVERY_S = 15.0
LOST_AFTER_S = 24 * 3600.0
"""A request that began so long ago, and has no usage row, will have none: its gateway was killed."""
PROVIDER = "market"
_PAUSE_S_MAX = 240.0

AskBuyer = Callable[[str, str], Awaitable[bytes]]
"""Asks the buyer's process: method, target. Raises OSError, EOFError, TimeoutError, CloudWorkerUnavailable."""
Book = Callable[[Posting], Awaitable[Posted]]
Look = Callable[[Callable[[Session], dict[str, int]]], Awaitable[dict[str, int]]]
"""Reads the books in a thread. Raises DatabaseFailing."""


class OwedBooking:
    """Compares what the buyer says with the books, and books the difference. One event loop owns it.

    `is_behind` says whether requests that have ended wait to be booked, in memory or on disk.
    """

    def __init__(
        self,
        ask: AskBuyer,
        book: Book,
        look: Look,
        is_behind: Callable[[], bool],
        *,
        every_s: float = EVERY_S,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._ask = ask
        self._book = book
        self._look = look
        self._is_behind = is_behind
        self._every_s = every_s
        self._lost_after_ms = lost_after_s * 1000
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="market-owed")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def book_all(self) -> int:
        """Look at everything that the buyer tells, once; returns how many requests are in the books now.

        Raises:
            OSError, EOFError, TimeoutError, ValueError, CloudWorkerUnavailable: the buyer does not answer.
            LedgerError, GatewayError: the books cannot be read, or take nothing now.
        """
        count, after = 0, ""
        while True:
            told = await self._told(after)
            count += await self._book_page(after, told)
            if len(told) < OWED_AT_ONCE:
                return count
            after = told[-1].id

    async def _book_page(self, after: str, told: Collection[Owed]) -> int:
        accrued = await self._ended(told)
        if not accrued:
            return 0
        # Told again: of a request that had ended by then, nothing comes behind what is told now.
        done = [
            owed.id
            for owed in await self._told(after)
            if owed.id in accrued and await self._settle(owed, accrued[owed.id])
        ]
        if done:
            await self._ask("POST", f"/owed/booked?ids={','.join(map(quote, done))}")
        return len(done)

    async def _told(self, after: str) -> tuple[Owed, ...]:
        page = await self._ask("GET", f"/owed?after={quote(after)}")
        return msgspec.json.decode(page, type=OwedPage).requests

    async def _ended(self, told: Collection[Owed]) -> Mapping[str, int]:
        """What is booked of those requests that have ended."""
        is_behind, lost_ms = self._is_behind(), time.time_ns() // 10**6 - self._lost_after_ms
        ids = [owed.id for owed in told]
        if not ids:
            return {}
        accrued = await self._look(lambda session: _accrued(session, ids))
        if not is_behind:
            accrued = {owed.id: 0 for owed in told if owed.began_ms < lost_ms} | accrued
        return accrued

    async def _settle(self, owed: Owed, accrued_nano: int) -> bool:
        """Book what is lacking; whether nothing is lacking now."""
        beyond_nano = owed.amount_nano - accrued_nano
        if beyond_nano < 0:
            # Where the buyer died in the middle of a job, the caller may have had more than was written down.
            tell = log.info if owed.died else log.error
            tell("market.owed_less", request_id=owed.id, owed_nano=owed.amount_nano, booked_nano=accrued_nano)
        if beyond_nano <= 0:
            return True
        try:
            await self._book(owed_beyond(owed.id, PROVIDER, accrued_nano, owed.amount_nano))
        except BooksUnavailable:
            raise
        except LedgerError as error:
            log.error("market.owed_refused", request_id=owed.id, beyond_nano=beyond_nano, reason=str(error))
            return False
        return True

    async def _run(self) -> None:
        pause_s = self._every_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.book_all()
                pause_s = self._every_s
            except (OSError, EOFError, TimeoutError, ValueError, CloudWorkerUnavailable) as error:
                log.info("market.owed_unknown", reason=type(error).__name__)
                pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
            except (LedgerError, GatewayError) as error:
                log.warning("market.owed_unbooked", reason=str(error))
                pause_s = min(_PAUSE_S_MAX, 2 * pause_s)


def _accrued(session: Session, request_ids: Iterable[str]) -> dict[str, int]:
    """What usage rows owe to the market; 0 where others have answered after all."""
    table = usage_table.c
    query = select(table.request_id, table.lane, table.cost_nano).where(table.request_id.in_(request_ids))
    return {row.request_id: row.cost_nano if row.lane == PROVIDER else 0 for row in session.execute(query)}
