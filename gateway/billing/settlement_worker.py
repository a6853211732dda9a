"""The thread that books ended requests in batches and hands each batch to the logs."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import structlog
from msgspec import structs

from accounting.errors import LedgerError, LedgerUnavailable
from gateway.billing.batch_settlement import Settled, Settler
from gateway.billing.finished_request import Ended
from gateway.billing.recount import Recounter
from gateway.billing.spool import Settlement, Spool
from gateway.metrics.metrics import Metrics

log = structlog.get_logger(__name__)

BATCH_MAX = 1000
# How long an ended request waits for others in its batch: at fifty a second, the transaction is most of the cost
# of booking.
BATCH_WAIT_S = 0.5
# About 8 MB. At full load some 600 wait; more wait only if the ledger hangs. Then each further request is written
# to disk before its caller continues.
WAITING_MAX = 6_000
# The doubling waits between tries: a database that restarts is back within them.
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 0.0)
# If more requests than this wait, a batch goes to the spool after one try.
_PATIENT_MAX = 4096
_REPLAY_EVERY_S = 30.0


class Booked(NamedTuple):
    """An ended request with its journal entry; None if the ledger did not accept it, or already had it."""

    ended: Ended
    event_seq: int | None


class SettlementWorker:
    """Settles batch after batch. Requests that the ledger does not accept go to the spool, which it replays.

    `witness` gets every batch after it was booked or written to disk; it must not raise.
    """

    def __init__(
        self,
        settler: Settler,
        spool: Spool,
        metrics: Metrics,
        witness: Callable[[list[Booked]], None],
        recounter: Recounter,
    ) -> None:
        self._settler = settler
        self._spool = spool
        self._metrics = metrics
        self._witness = witness
        self._recounter = recounter
        self._waiting: deque[Ended] = deque()
        self._busy_with: list[Ended] = []
        self._is_urgent = False
        self._taken = 0
        self._settled = 0
        self._awaited: list[tuple[int, Callable[[], object]]] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="settlement", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, ended: Ended) -> None:
        """Take an ended request. Waits for the disk only if far too many requests wait already."""
        if self._abandoned.is_set() or len(self._waiting) >= WAITING_MAX:
            self._keep([ended.settlement])
            return
        self._waiting.append(ended)
        self._taken += 1
        if self._abandoned.is_set():
            self._keep_waiting()  # The worker has just stopped, so no thread reads the queue.
            return
        # Paid requests are booked immediately: after a crash during the wait they would be free.
        is_urgent = ended.settlement.hold is not None
        # Wake the thread only for requests that may end its wait, not for each request of a batch.
        if is_urgent or len(self._waiting) in (1, BATCH_MAX):
            with self._changed:
                self._is_urgent |= is_urgent
                self._changed.notify()

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._busy_with)

    def tell_when_caught_up(self, tell: Callable[[], object]) -> None:
        """Call `tell`, on any thread, once all requests taken so far are booked, or on disk if booking fails."""
        with self._changed:
            if self._settled < self._taken and not self._abandoned.is_set():
                self._awaited.append((self._taken, tell))
                self._is_urgent = True
                self._changed.notify()
                return
        tell()

    def stop(self, timeout_s: float) -> None:
        """Book the waiting requests. Requests not booked in time, and all later ones, are on disk afterwards."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._abandoned.set()
        # In this order, because the thread notes requests before it takes them from the queue.
        self._keep_waiting()
        # Whether this batch was booked is unknown: booking it again under its key is safe and finds out.
        self._keep([ended.settlement for ended in self._busy_with])
        self._tell_settled(0)

    def _run(self) -> None:
        replay_at_s = 0.0
        while not self._abandoned.is_set():
            batch = self._next_batch(replay_at_s)
            if batch:
                self._guarded(self._book, batch)
                self._tell_settled(len(batch))
            elif self._stopping.is_set():
                return
            if time.monotonic() >= replay_at_s and not self._stopping.is_set():
                self._guarded(self._replay)
                replay_at_s = time.monotonic() + _REPLAY_EVERY_S

    def _tell_settled(self, count: int) -> None:
        with self._changed:
            self._settled += count
            is_over = self._abandoned.is_set()
            due = [tell for mark, tell in self._awaited if is_over or mark <= self._settled]
            self._awaited = [(mark, tell) for mark, tell in self._awaited if not is_over and mark > self._settled]
        for tell in due:
            tell()

    def _guarded(self, work: Callable[..., None], *arguments: list[Ended]) -> None:
        """The thread's edge: the thread survives any error of a batch or of the disk.

        Unsettled requests are written to disk, and booked from there if they were not booked already.
        """
        try:
            work(*arguments)
        except Exception:
            log.exception("requests not settled", requests=len(self._busy_with))
            self._keep_batch()
        self._busy_with = []

    def _keep_batch(self) -> None:
        if self._abandoned.is_set():
            return  # `stop` writes them to disk.
        try:
            self._keep([ended.settlement for ended in self._busy_with])
        except Exception:
            log.exception("requests lost", requests=[e.settlement.usage.request_id for e in self._busy_with])

    def _next_batch(self, until_s: float) -> list[Ended]:
        """Wait for a request, then a moment for further ones, and take up to a batch."""
        with self._changed:
            patience_s = max(0.0, until_s - time.monotonic())
            self._changed.wait_for(lambda: self._waiting or self._stopping.is_set(), timeout=patience_s)
            if self._waiting:
                self._changed.wait_for(self._must_go, timeout=BATCH_WAIT_S)
        self._is_urgent = False
        # Note them before they leave the queue, so that a concurrent stop does not miss them.
        self._busy_with = batch = list(islice(self._waiting, BATCH_MAX))
        for _ in batch:
            self._waiting.popleft()
        return batch

    def _must_go(self) -> bool:
        return self._is_urgent or len(self._waiting) >= BATCH_MAX or self._stopping.is_set()

    def _book(self, batch: list[Ended]) -> None:
        # Store the counted requests first: if they go to disk, they must equal what is booked here.
        self._busy_with = batch = [self._counted(ended) if ended.recount else ended for ended in batch]
        settled = self._settle([ended.settlement for ended in batch])
        if self._abandoned.is_set():
            return
        self._busy_with = []
        charged_nano = 0
        booked = []
        for ended, each in zip(batch, settled, strict=True):
            event_seq = each if isinstance(each, int) else None
            if event_seq is not None:
                charged_nano += ended.settlement.charge_nano
            booked.append(Booked(ended, event_seq))
        self._metrics.charged_nano.inc(charged_nano)
        self._witness(booked)

    def _counted(self, ended: Ended) -> Ended:
        """Return the settlement with its text counted, or unchanged if it cannot be counted."""
        assert ended.recount
        try:
            settlement = self._recounter.counted(ended.settlement, ended.recount)
        except LedgerError as error:
            log.error("text not counted", request_id=ended.settlement.usage.request_id, reason=str(error))
            settlement = ended.settlement
        except Exception:  # One answer's edge: its error must not affect the others of its batch.
            log.exception("text not counted", request_id=ended.settlement.usage.request_id)
            settlement = ended.settlement
        more_nano = settlement.charge_nano - ended.settlement.charge_nano
        if more_nano and ended.recount.correct and not self._abandoned.is_set():
            ended.recount.correct(more_nano)
        return structs.replace(ended, settlement=settlement, recount=None)

    def _settle(self, settlements: list[Settlement]) -> list[Settled]:
        """Book; retry if the ledger was unavailable; write the rest to disk."""
        settled = self._settler.settle(settlements)
        for pause_s in _PAUSES_S:
            left = [number for number, each in enumerate(settled) if isinstance(each, LedgerUnavailable)]
            if not left or not pause_s or len(self._waiting) > _PATIENT_MAX or self._stopping.wait(pause_s):
                break
            log.warning("ledger unavailable", requests=len(left), reason=str(settled[left[0]]))
            again = self._settler.settle([settlements[number] for number in left])
            for number, each in zip(left, again, strict=True):
                settled[number] = each
        if not self._abandoned.is_set():
            self._tell_failures(settlements, settled)
        return settled

    def _tell_failures(self, settlements: Sequence[Settlement], settled: Sequence[Settled]) -> None:
        away = []
        for settlement, each in zip(settlements, settled, strict=True):
            if isinstance(each, LedgerUnavailable):
                away.append(settlement)
            elif isinstance(each, Exception):
                _log_lost(settlement, each)
        self._keep(away)

    def _keep_waiting(self) -> None:
        """Write each waiting request to disk. Two threads may do this; each request is taken once."""
        left = []
        with suppress(IndexError):
            while True:
                left.append(self._waiting.popleft().settlement)
        self._keep(left)

    def _keep(self, settlements: Sequence[Settlement]) -> None:
        if settlements:
            self._metrics.spooled_settlements.inc(len(settlements))
            self._spool.add_all(settlements)

    def _replay(self) -> None:
        """Book the spool's requests, left by an outage or by the last process."""
        spooled = self._spool.read()
        for start in range(0, len(spooled), BATCH_MAX):
            some = spooled[start : start + BATCH_MAX]
            settled = self._settler.settle([entry.settlement for entry in some])
            lines = set()
            for entry, each in zip(some, settled, strict=True):
                if isinstance(each, LedgerUnavailable):
                    continue
                lines.add(entry.line)
                if isinstance(each, Exception):
                    _log_lost(entry.settlement, each)
                elif each is not None:
                    self._metrics.charged_nano.inc(entry.settlement.charge_nano)
            if not lines or self._stopping.is_set():
                self._spool.remove(lines)
                return
            self._spool.remove(lines)
            log.info("spooled requests posted", count=len(lines))


def _log_lost(settlement: Settlement, error: Exception) -> None:
    request_id, charge_nano = settlement.usage.request_id, settlement.charge_nano
    log.error("request not posted", request_id=request_id, charge_nano=charge_nano, reason=str(error))
