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

from accounting import health, rules
from accounting.balances import Balance, balance
from accounting.chart import user_paid
from accounting.errors import (
    BooksUnavailable,
    DatabaseFailing,
    HoldExpired,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerError,
)
from accounting.health import Finding
from accounting.holds import Holds
from accounting.poster import Poster
from accounting.postings import Posted, UsageRecord
from accounting.reaper import Reaper
from accounting.rules import CloudBill, Hold
from gateway.records.spool import Settlement

log = structlog.get_logger(__name__)

REAP_EVERY_S = 5.0
ANSWER_TIMEOUT_S = 30.0
CONDITION_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether the database answers, and which rules of the books are broken; `seen_s` is monotonic."""

    is_reachable: bool
    broken: tuple[str, ...]
    seen_s: float


class Books:
    """Owns the poster's thread and the tasks that watch over the books."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._poster = Poster(write)
        self._holds = Holds(self._poster)
        self._reaper = Reaper(self._poster, read)
        self._condition = Condition(True, (), -math.inf)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._poster.start()
        self._tasks.append(asyncio.create_task(self._reap(), name="hold reaper"))

    def inspect(self) -> None:
        """Check every rule of the books in the background; what is broken is logged."""
        self._tasks.append(asyncio.create_task(self._inspect(), name="books inspection"))

    async def stop(self) -> None:
        """Everything submitted is on disk afterwards."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not await asyncio.to_thread(self._poster.stop, ANSWER_TIMEOUT_S):
            log.error("books closed with postings left", seconds=ANSWER_TIMEOUT_S)

    @property
    def waiting(self) -> int:
        return self._poster.waiting

    async def hold(self, request_id: str, user_id: str, amount_nano: int, lasts_s: float) -> Hold:
        """Put credits aside. Raises InsufficientCredit, BooksUnavailable."""
        deadline_ns = time.time_ns() + int(lasts_s * 1e9)
        placed = self._holds.place(request_id, user_id, amount_nano, deadline_ns)
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
        """Release a hold that nobody waited for; what cannot be released now is the reaper's."""
        if placed.exception() is not None:
            return
        try:
            self._holds.release(placed.result())
        except BooksUnavailable as error:
            log.warning("hold left to the reaper", request_id=placed.result().request_id, reason=str(error))

    async def settle(self, settlement: Settlement) -> Posted | None:
        """Book how a request ended: capture, release, or work of own machines.

        Its usage row is booked whatever the reaper did to its hold. May be repeated until it is answered; None
        when an earlier try had booked it already.

        Raises:
            BooksUnavailable: not answered; try again.
            LedgerError: this can never be booked.
        """
        held, bill, usage = settlement.hold, settlement.bill, settlement.usage
        if held is None:
            return await self._record(usage)
        try:
            if bill is None:
                return await asyncio.wrap_future(self._holds.release(held, usage))
            return await asyncio.wrap_future(self._holds.capture(held, bill, usage))
        except HoldExpired:
            log.warning("hold settled late", request_id=held.request_id)
            return await self._settle_late(held, bill, usage)
        except IdempotencyConflict:
            # The only other event with this key is a late capture: of an earlier try whose answer was lost.
            return None

    async def _settle_late(self, held: Hold, bill: CloudBill | None, usage: UsageRecord) -> Posted:
        """The reaper was faster: charge what credits there are, the user owes the rest."""
        if bill is None:
            return await self._record(usage)
        available_nano = (await self.balance(held.user_id)).available_nano
        try:
            return await asyncio.wrap_future(
                self._holds.capture_late(held, bill, usage, covered_nano=max(0, available_nano))
            )
        except InsufficientCredit:
            # Another request took them in between.
            return await asyncio.wrap_future(self._holds.capture_late(held, bill, usage))
        except HoldExpired:
            log.error("too late to charge", request_id=held.request_id, charge_nano=bill.charge_nano)
            return await self._record(usage)

    async def _record(self, usage: UsageRecord) -> Posted:
        """Book a request that cost no money: compute units of own machines, or nothing at all."""
        return await asyncio.wrap_future(self._poster.submit(rules.local_use(usage), urgent=False))

    async def credit(self, credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posted:
        """The operator's own money, once per `credit_id`."""
        posting = rules.manual_credit(credit_id, user_id, amount_nano, reason)
        return await asyncio.wrap_future(self._poster.submit(posting))

    async def balance(self, user_id: str) -> Balance:
        """Raises AccountUnknown, DatabaseFailing."""
        return await asyncio.to_thread(self._look, lambda session: balance(session, user_paid(user_id)))

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
