"""The gateway's hand in the books: holds before paid work, captures after it, a usage row for every request."""

import asyncio
import time
from collections.abc import Callable

import structlog
from sqlalchemy.orm import Session

from accounting import rules
from accounting.balances import Balance, balance
from accounting.chart import user_paid
from accounting.errors import HoldExpired, LedgerError
from accounting.holds import Holds
from accounting.poster import Poster
from accounting.postings import Posted, UsageRecord
from accounting.reaper import Reaper
from accounting.rules import CloudBill, Hold

log = structlog.get_logger(__name__)

REAP_EVERY_S = 5.0
ANSWER_TIMEOUT_S = 30.0


class Books:
    """Owns the poster's thread and the reaper's task."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._poster = Poster(write)
        self._holds = Holds(self._poster)
        self._reaper = Reaper(self._poster, read)
        self._reaping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._poster.start()
        self._reaping = asyncio.create_task(self._reap(), name="hold reaper")

    async def stop(self) -> None:
        """Everything submitted is on disk afterwards."""
        if self._reaping:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
        if not await asyncio.to_thread(self._poster.stop, ANSWER_TIMEOUT_S):
            log.error("books closed with postings left", seconds=ANSWER_TIMEOUT_S)

    @property
    def waiting(self) -> int:
        return self._poster.waiting

    async def hold(self, request_id: str, user_id: str, amount_nano: int, lasts_s: float) -> Hold:
        """Put credits aside. Raises InsufficientCredit, BooksUnavailable."""
        deadline_ns = time.time_ns() + int(lasts_s * 1e9)
        placed = self._holds.place(request_id, user_id, amount_nano, deadline_ns)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.wrap_future(placed)

    async def capture(self, held: Hold, bill: CloudBill, usage: UsageRecord) -> Posted:
        """Charge what was delivered; on a hold that the reaper gave back the user owes it."""
        try:
            return await asyncio.wrap_future(self._holds.capture(held, bill, usage))
        except HoldExpired:
            log.warning("hold captured late", request_id=held.request_id)
            return await asyncio.wrap_future(self._holds.capture_late(held, bill, usage))

    async def release(self, held: Hold, usage: UsageRecord | None = None) -> Posted:
        return await asyncio.wrap_future(self._holds.release(held, usage))

    async def record(self, usage: UsageRecord) -> Posted:
        """Book a request that cost no money: compute units of own machines, or nothing at all."""
        return await asyncio.wrap_future(self._poster.submit(rules.local_use(usage), urgent=False))

    async def credit(self, credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posted:
        """The operator's own money, once per `credit_id`."""
        posting = rules.manual_credit(credit_id, user_id, amount_nano, reason)
        return await asyncio.wrap_future(self._poster.submit(posting))

    async def balance(self, user_id: str) -> Balance:
        def look() -> Balance:
            with self._read() as session:
                return balance(session, user_paid(user_id))

        return await asyncio.to_thread(look)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            try:
                reaped = await asyncio.to_thread(self._reaper.sweep)
            except (LedgerError, TimeoutError) as error:
                log.warning("reaper held up", reason=str(error))
                continue
            if reaped:
                log.warning("holds reaped", count=reaped)
