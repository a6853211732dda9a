"""Book ended requests in batches: local usage as one journal entry, each hold separately, late ones included.

Belongs to one thread. Every entry has a key, so settling a request again finds it booked.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

import structlog
from sqlalchemy.orm import Session

from accounting.chart import user_paid
from accounting.errors import (
    AlreadyResolved,
    DatabaseFailing,
    HoldExpired,
    HoldNotFound,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerError,
    LedgerUnavailable,
    UsageBooked,
)
from accounting.ledger.balances import balance
from accounting.ledger.postings import MAX_USAGES, Posted, Posting, UsageRecord
from accounting.ledger.writer import Writer
from accounting.rules import burst, local
from accounting.rules.held import CloudBill, Hold
from accounting.rules.parts import Share
from accounting.spending.funding_sources import credits_of
from accounting.spending.holds import Holds
from accounting.spending.leases import Leases
from accounting.spending.reaper import lease_tip
from gateway.billing.spool import Settlement

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT_S = 30.0
"""How long the ledger may take for one batch, in seconds."""

Settled: TypeAlias = int | LedgerError | None
"""The journal entry that ended a request, the error why it is not booked, or None if an earlier try booked it."""


T = TypeVar("T")


class Read(Protocol):
    def __call__(self, query: Callable[[Session], T], /) -> T: ...


class Settler:
    """Waits for the ledger's answers, at most `answer_s` seconds for each batch.

    `read` gives a query a session, and raises DatabaseFailing if it cannot.
    """

    def __init__(self, poster: Writer, leases: Leases, read: Read, *, answer_s: float = ANSWER_TIMEOUT_S) -> None:
        self._poster = poster
        self._leases = leases
        self._holds = Holds(poster)
        self._read = read
        self._answer_s = answer_s
        # The deadline for the current settlements, on the monotonic clock.
        self._until_s = 0.0

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Book every settlement, and return each one's result. Those with LedgerUnavailable may be sent again."""
        # One limit for all: if the ledger hangs, ended requests must still be written to disk.
        self._until_s = time.monotonic() + self._answer_s
        # Submit all holds before waiting for the first, so that they share the writer's groups.
        started = [self._start(each) if each.hold else None for each in settlements]
        free = iter(self._record([each.usage for each in settlements if each.hold is None]))
        return [
            next(free) if start is None else self._finish(each, start)
            for each, start in zip(settlements, started, strict=True)
        ]

    def _record(self, usages: Sequence[UsageRecord]) -> list[Settled]:
        """Book requests that cost no money: compute units of own machines, or nothing at all."""
        settled: list[Settled] = []
        for start in range(0, len(usages), MAX_USAGES):
            settled += self._record_together(usages[start : start + MAX_USAGES])
        return settled

    def _record_together(self, usages: Sequence[UsageRecord]) -> list[Settled]:
        """Book as one journal entry, without rows booked already. If one is refused, book each half by itself."""
        if not usages:
            return []
        try:
            posted = self._posted(local.local_uses(usages))
        except UsageBooked as known:
            rest = [usage for usage in usages if usage.request_id not in known.request_ids]
            booked = iter(self._record_together(rest))
            return [None if usage.request_id in known.request_ids else next(booked) for usage in usages]
        except LedgerUnavailable as error:
            return [error] * len(usages)
        except LedgerError as error:
            if len(usages) == 1:
                return [error]
            half = len(usages) // 2
            return self._record_together(usages[:half]) + self._record_together(usages[half:])
        return [posted.event_seq] * len(usages)

    def _start(self, settlement: Settlement) -> "Future[Posted | None] | Future[Posted] | LedgerError":
        held, bill, usage = settlement.hold, settlement.bill, settlement.usage
        assert held
        try:
            if held.lease:
                return self._leases.capture(held, bill, usage)
            if bill is None:
                return self._holds.release(held, usage)
            return self._holds.capture(held, bill, usage)
        except LedgerError as error:
            return error

    def _finish(
        self, settlement: Settlement, started: "Future[Posted | None] | Future[Posted] | LedgerError"
    ) -> Settled:
        held = settlement.hold
        assert held
        try:
            posted = self._answer(started)
            return posted.event_seq if posted else None
        except (IdempotencyConflict, UsageBooked):
            # The only other entry with this key or usage row is a late capture of an earlier try.
            return None
        except HoldExpired:
            if settlement.bill is None:
                # Nothing is charged, and the hold's funds are already released.
                return self._record([settlement.usage])[0]
            log.warning("hold settled late", request_id=held.request_id)
        except LedgerError as error:
            return error
        try:
            settle = self._settle_owed if held.lease else self._settle_late
            return settle(held, settlement.bill, settlement.usage)
        except (IdempotencyConflict, UsageBooked):
            # As above; an earlier try may have used other funds.
            return None
        except LedgerError as error:
            return error

    def _settle_owed(self, held: Hold, bill: CloudBill, usage: UsageRecord) -> Settled:
        """Settle like `_settle_late`, for a lease that ended with this gateway's last process or was reaped.

        The reservation of a dead process's lease pays first, and is then released. A live lease belongs to other
        requests: its reservation was less than this request's charge.
        """
        if bill.charge_nano > held.amount_nano:
            bill = replace(bill, charge_nano=held.amount_nano)
        parts = self._look(lambda session: lease_tip(session, held.pending_seq))
        is_enough = sum(part.amount_nano for part in parts) >= bill.charge_nano
        if is_enough and not self._leases.has(held):
            last = burst.lease(f"last-{held.request_id}", parts, [(bill, usage)], expires_ns=0)
            try:
                return self._posted(last).event_seq
            except (HoldExpired, AlreadyResolved, HoldNotFound):
                pass
        log.warning("request settled after its reservation ended", request_id=held.request_id)
        try:
            covered = self._look(lambda session: credits_of(session, held.payer, time.time_ns()))
            return self._capture_owed(held, bill, usage, covered)
        except InsufficientCredit:
            # Another request used them meanwhile.
            return self._capture_owed(held, bill, usage, ())

    def _capture_owed(self, held: Hold, bill: CloudBill, usage: UsageRecord, covered: Sequence[Share]) -> int:
        return self._posted(burst.owed_capture(held, bill, usage, covered)).event_seq

    def _available_nano(self, user_id: str) -> int:
        return max(0, self._look(lambda session: balance(session, user_paid(user_id))).available_nano)

    def _settle_late(self, held: Hold, bill: CloudBill, usage: UsageRecord) -> Settled:
        """Settle after the reaper released the hold: charge the available credits; the user owes the rest."""
        available_nano = self._available_nano(held.user_id)
        try:
            try:
                return self._capture_late(held, bill, usage, available_nano)
            except InsufficientCredit:
                # Another request took them in between.
                return self._capture_late(held, bill, usage, 0)
        except HoldExpired:
            log.error("too late to charge", request_id=held.request_id, charge_nano=bill.charge_nano)
            return self._record([usage])[0]

    def _capture_late(self, held: Hold, bill: CloudBill, usage: UsageRecord, covered_nano: int) -> int:
        self._refuse_late()
        posted = self._answer(self._holds.capture_late(held, bill, usage, covered_nano=covered_nano))
        assert posted
        return posted.event_seq

    def _posted(self, posting: Posting) -> Posted:
        self._refuse_late()
        posted = self._answer(self._poster.submit(posting))
        assert posted
        return posted

    def _look(self, query: Callable[[Session], T]) -> T:
        self._refuse_late()
        return self._read(query)

    def _refuse_late(self) -> None:
        """Check the deadline: a ledger that has used up its time gets no more queries. Raises DatabaseFailing."""
        if time.monotonic() >= self._until_s:
            raise DatabaseFailing("the ledger did not answer in time")

    def _answer(self, future: "Future[Posted | None] | Future[Posted] | LedgerError") -> Posted | None:
        if isinstance(future, LedgerError):
            raise future
        try:
            return future.result(max(0.0, self._until_s - time.monotonic()))
        except TimeoutError:
            raise DatabaseFailing("the ledger did not answer in time") from None
