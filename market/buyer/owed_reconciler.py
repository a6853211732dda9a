"""Book what we owe sellers beyond what requests were charged: from the buyer's process into the ledger.

A caller who hangs up is charged for what was sent by then; the seller delivered what had reached us. A
non-streaming answer that broke off is not charged, but we owe the seller for its part. A request of a killed
gateway has no usage row at all. An audit has none either, and we pay for it ourselves. The buyer reports every
request until it is told that the ledger has it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from urllib.parse import quote

import msgspec
import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.errors import LedgerError, LedgerUnavailable
from accounting.ledger.postings import Posted, Posting
from accounting.rules.audits import audit
from accounting.rules.variances import owed_beyond
from accounting.tables import usage_table
from market.audits.audit_target import AUDIT_ID
from market.buyer.owed import OWED_AT_ONCE, Owed, OwedPage
from runtime.errors import ServiceError
from runtime.times import now_ms
from runtime.workers.supervisor import WorkerUnavailable

log = structlog.get_logger(__name__)

LOST_AFTER_S = 24 * 3600.0
"""A request older than this without a usage row will never get one: its gateway was killed."""

PROVIDER = "market"
_EVERY_S = 15.0
_PAUSE_S_MAX = 240.0
AskBuyer = Callable[[str, str], Awaitable[bytes]]
"""Ask the buyer's process: method, target. Raises OSError, EOFError, TimeoutError, WorkerUnavailable."""
Book = Callable[[Posting], Awaitable[Posted]]
Look = Callable[[Callable[[Session], dict[str, int]]], Awaitable[dict[str, int]]]
"""Read the ledger in a thread. Raises DatabaseFailing."""


class OwedReconciler:
    """Compare the buyer's figures with the ledger and book the difference. One event loop owns it.

    `is_behind` returns whether finished requests wait to be booked, in memory or on disk.
    """

    def __init__(
        self,
        ask: AskBuyer,
        book: Book,
        look: Look,
        is_behind: Callable[[], bool],
        *,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._ask = ask
        self._book = book
        self._look = look
        self._is_behind = is_behind
        self._lost_after_ms = lost_after_s * 1000

    async def run(self) -> None:
        """Book every few seconds until cancelled, and less often while the buyer or the ledger fails."""
        pause_s = _EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
            try:
                await self.book_all()
                pause_s = _EVERY_S
            except (OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable) as error:
                log.info("market.buyer_unknown", reason=type(error).__name__)
            except (LedgerError, ServiceError) as error:
                log.warning("market.not_posted", reason=str(error))

    async def book_all(self) -> int:
        """Compare everything that the buyer reports, once; return how many requests the ledger has now.

        Raises:
            OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable: the buyer does not answer.
            LedgerError, ServiceError: the ledger cannot be read or written now.
        """
        count, after = 0, ""
        while True:
            page = await self._owed_page(after)
            count += await self._book_page(after, page)
            if len(page) < OWED_AT_ONCE:
                return count
            after = page[-1].id

    async def _book_page(self, after: str, page: Collection[Owed]) -> int:
        accrued = await self._ended(page)
        if not accrued:
            return 0
        # Ask again: for a request that had ended before this second answer, no further job follows.
        done = [
            owed.id
            for owed in await self._owed_page(after)
            if owed.id in accrued and await self._settle(owed, accrued[owed.id])
        ]
        if done:
            await self._ask("POST", f"/owed/booked?ids={','.join(map(quote, done))}")
        return len(done)

    async def _owed_page(self, after: str) -> tuple[Owed, ...]:
        content = await self._ask("GET", f"/owed?after={quote(after)}")
        return msgspec.json.decode(content, type=OwedPage).requests

    async def _ended(self, page: Collection[Owed]) -> Mapping[str, int]:
        """Return what is booked for the requests that have ended, in nano-USD by id: nothing for audits."""
        is_behind, lost_ms = self._is_behind(), now_ms() - self._lost_after_ms
        accrued = {owed.id: 0 for owed in page if _is_audit(owed) or (owed.began_ms < lost_ms and not is_behind)}
        if ids := [owed.id for owed in page if not _is_audit(owed)]:
            accrued |= await self._look(lambda session: _accrued(session, ids))
        return accrued

    async def _settle(self, owed: Owed, accrued_nano: int) -> bool:
        """Book the difference; return whether the ledger is complete now."""
        beyond_nano = owed.amount_nano - accrued_nano
        if beyond_nano < 0:
            # If the buyer died during a job, the caller may have received more than was written down.
            tell = log.info if owed.died else log.error
            tell("market.owed_less", request_id=owed.id, owed_nano=owed.amount_nano, booked_nano=accrued_nano)
        if beyond_nano <= 0:
            return True
        if _is_audit(owed):
            posting = audit(owed.id, PROVIDER, owed.amount_nano, owed.seller)
        else:
            posting = owed_beyond(owed.id, PROVIDER, accrued_nano, owed.amount_nano)
        try:
            await self._book(posting)
        except LedgerUnavailable:
            raise
        except LedgerError as error:
            log.error("market.owed_refused", request_id=owed.id, beyond_nano=beyond_nano, reason=str(error))
            return False
        return True


def _is_audit(owed: Owed) -> bool:
    return owed.id.startswith(AUDIT_ID)


def _accrued(session: Session, request_ids: Iterable[str]) -> dict[str, int]:
    """Return what usage rows owe the market, in nano-USD; 0 if another lane answered after all."""
    table = usage_table.c
    query = select(table.request_id, table.lane, table.cost_nano).where(table.request_id.in_(request_ids))
    return {row.request_id: row.cost_nano if row.lane == PROVIDER else 0 for row in session.execute(query)}
