"""The gateway's hand in the books: holds before paid work, captures after it, a usage row for every request."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.chart import user_paid
from accounting.errors import (
    DatabaseFailing,
    LedgerError,
)
from accounting.ledger import health
from accounting.ledger.balances import Balance, balance
from accounting.ledger.health import Finding
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted
from accounting.rules import grants
from accounting.rules.held import Hold
from accounting.spending.leases import Leases
from accounting.spending.reaper import Reaper
from gateway.records.settler import ANSWER_TIMEOUT_S, Settler

log = structlog.get_logger(__name__)

REAP_EVERY_S = 5.0
CONDITION_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether the database answers, and which rules of the books are broken; `seen_s` is monotonic."""

    is_reachable: bool
    broken: tuple[str, ...]
    seen_s: float


class Books:
    """Owns the threads of the poster and of the leases, and the tasks that watch over the books."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._poster = Poster(write)
        self.leases = Leases(self._poster)
        self._reaper = Reaper(self._poster, read)
        self.settler = Settler(self._poster, self.leases, self._look)
        self._condition = Condition(True, (), -math.inf)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._poster.start()
        self.leases.start()
        self._tasks.append(asyncio.create_task(self._reap(), name="hold reaper"))

    def inspect(self) -> None:
        """Check every rule of the books in the background; what is broken is logged."""
        self._tasks.append(asyncio.create_task(self._inspect(), name="books inspection"))

    async def stop(self) -> None:
        """Everything submitted is on disk afterwards."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.leases.stop, ANSWER_TIMEOUT_S)
        if not await asyncio.to_thread(self._poster.stop, ANSWER_TIMEOUT_S):
            log.error("books closed with postings left", seconds=ANSWER_TIMEOUT_S)

    @property
    def waiting(self) -> int:
        return self._poster.waiting

    async def hold(self, request_id: str, user_id: str, amount_nano: int) -> Hold:
        """Put credits aside, in memory where this process's lease has them; a lease lasts as long as its requests.

        Raises InsufficientCredit, AmountInvalid, BooksUnavailable.
        """
        placed = self.leases.hold(request_id, user_id, amount_nano)
        if isinstance(placed, Hold):
            return placed
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.wrap_future(placed)
        except TimeoutError:
            placed.add_done_callback(self._give_back)
            raise DatabaseFailing("the books did not answer in time") from None
        except asyncio.CancelledError:
            placed.add_done_callback(self._give_back)
            raise

    def _give_back(self, placed: "Future[Hold]") -> None:
        """Free what nobody waited for."""
        if placed.exception() is None:
            self.leases.end(placed.result(), 0)

    async def credit(self, credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posted:
        """The operator's own money, once per `credit_id`."""
        posting = grants.manual_credit(credit_id, user_id, amount_nano, reason)
        return await asyncio.wrap_future(self._poster.submit(posting))

    async def balance(self, user_id: str) -> Balance:
        """Raises AccountUnknown, DatabaseFailing."""
        return await asyncio.to_thread(self._look, lambda session: _paid(session, user_id))

    async def findings(self, *, deep: bool) -> list[Finding]:
        """What is wrong with the books. Raises DatabaseFailing."""
        return await asyncio.to_thread(
            self._look, lambda session: health.findings(session, time.time_ns(), deep=deep)
        )

    async def condition(self) -> Condition:
        """How the books are, as of a moment ago: asking often costs nothing."""
        if time.monotonic() - self._condition.seen_s > CONDITION_S:
            try:
                found = tuple(finding.rule for finding in await self.findings(deep=False))
                self._condition = Condition(True, found, time.monotonic())
            except DatabaseFailing:
                self._condition = Condition(False, (), time.monotonic())
        return self._condition

    def _look(self, query: Callable[[Session], T]) -> T:
        try:
            with self._read() as session:
                return query(session)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"the books cannot be read: {type(error).__name__}") from error

    async def _inspect(self) -> None:
        """Every rule of the books, checked once at the start: behind the answers, for old books take a while."""
        try:
            found = await self.findings(deep=True)
        except DatabaseFailing as error:
            log.warning("books not inspected", reason=str(error))
            return
        for finding in found:
            log.error("the books break a rule", rule=finding.rule, where=finding.where)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            try:
                reaped = await asyncio.to_thread(self._reaper.sweep)
            except (LedgerError, TimeoutError) as error:
                log.warning("reaper held up", reason=str(error))
                continue
            except Exception:
                # The task's edge: it outlives whatever one sweep meets.
                log.exception("reaper failed")
                continue
            if reaped:
                log.warning("holds reaped", count=reaped)


def _paid(session: Session, user_id: str) -> Balance:
    return balance(session, user_paid(user_id))
