"""Run the one writer: it takes events from many threads, books them in groups, and answers after the commit.

Every group costs one sync to disk and about the same time, whatever its size. So the writer works at its own pace,
and events that arrive while it writes form the next group. First it waits a moment for as many urgent events as
the last group had, because callers that were just answered tend to return together. A single urgent event never
waits. Events without a waiting caller wait a little longer for others.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, LedgerBusy, LedgerError, LedgerUnavailable, PosterStopped
from accounting.ledger.journal import Failpoint, Journal, OnFailpoint
from accounting.ledger.postings import Posted, Posting

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05


class _Waiting(NamedTuple):
    posting: Posting
    future: "Future[Posted]"
    urgent: bool


class Booking(Protocol):
    """The writer that books groups of events: a `Journal`, or a client that sends them to one."""

    def book(self, postings: Sequence[Posting]) -> Sequence[Posted | LedgerError]:
        """Return the answer to each event, in order. Raises LedgerUnavailable, and what `Journal.book` raises."""
        ...


def _no_failpoint(_: Failpoint) -> None:
    return None


class Poster:
    """Own the thread that writes the ledger. Make one per process; several processes take turns at the database.

    Args:
        open_session: returns sessions that may write; called on the poster's thread only.
        clock_ns: wall-clock time in nanoseconds since 1970.
        queue_max: most events that may wait; `submit` refuses further ones.
        group_max: most events in one transaction.
        linger_s: longest wait for more urgent events, in seconds.
        patience_s: longest wait of events that are not urgent, in seconds.
        attempts_max: how often one group is tried when the database fails, with pauses that double between.
        failpoint: called at named places of each transaction; for tests that kill the writer there.
        booking: where groups are booked instead of by an own journal; it then has clock and failpoint.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        queue_max: int = 8_192,
        group_max: int = 128,
        linger_s: float = 0.005,
        patience_s: float = 0.05,
        attempts_max: int = 4,
        failpoint: OnFailpoint = _no_failpoint,
        booking: Booking | None = None,
    ) -> None:
        self._journal = booking or Journal(open_session, clock_ns, failpoint)
        self._queue_max = queue_max
        self._group_max = group_max
        self._linger_s = linger_s
        self._patience_s = patience_s
        self._attempts_max = attempts_max
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._urgent = 0
        self._urgent_expected = 1
        self._open = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poster", daemon=True)

    def start(self) -> None:
        """Start to take and book events. A poster can be started once."""
        self._open = True
        self._thread.start()

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        """Hand an event to the writer. The future has its answer once it is on disk.

        An event without a waiting caller need not be urgent: it then shares a group with events that come soon
        after. A submitted event cannot be withdrawn: cancelling the future, or a task that awaits it, does not
        change what is booked. The future raises the `PostingDenied` that names the reason if the ledger refuses, and
        `DatabaseFailing` if the database fails.

        Raises:
            LedgerBusy: too many events wait already.
            PosterStopped: the poster is not running.
        """
        future: Future[Posted] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if not self._open:
                raise PosterStopped("the ledger is closed")
            if len(self._waiting) >= self._queue_max:
                raise LedgerBusy(f"{self._queue_max} journal entries wait to be posted")
            self._waiting.append(_Waiting(posting, future, urgent))
            self._urgent += urgent
            # Wake the writer only if the event may end its wait, not for each event that joins the group.
            if len(self._waiting) in (1, self._group_max) or (
                urgent and self._urgent in (1, self._urgent_expected)
            ):
                self._changed.notify()
        return future

    @property
    def waiting(self) -> int:
        """The number of events that the writer has not begun to book."""
        return len(self._waiting)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Take no new events, book the waiting ones, and end the thread. Return True if all were booked in time.

        Events that are not booked by then fail with `PosterStopped`. The exception is a group that is at the
        database at that moment: its futures are answered if and when the database answers.
        """
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self._abandoned.set()
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
        for waiting in left:
            waiting.future.set_exception(PosterStopped("the ledger closed before this journal entry was posted"))
        return False

    def _run(self) -> None:
        while group := self._next_group():
            self._settle(group)

    def _next_group(self) -> list[_Waiting]:
        """Wait for events and take up to a group of them. An empty list means that the poster has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            self._changed.wait_for(lambda: self._urgent or self._must_go, timeout=self._patience_s)
            if self._urgent:
                self._changed.wait_for(
                    lambda: self._urgent >= self._urgent_expected or self._must_go, timeout=self._linger_s
                )
            group = [self._waiting.popleft() for _ in range(min(self._group_max, len(self._waiting)))]
            urgent = sum(waiting.urgent for waiting in group)
            self._urgent -= urgent
            self._urgent_expected = max(1, urgent)
            return group

    @property
    def _must_go(self) -> bool:
        return len(self._waiting) >= self._group_max or not self._open

    def _settle(self, group: list[_Waiting]) -> None:
        answers: Sequence[Posted | LedgerError]
        try:
            answers = self._book([waiting.posting for waiting in group])
        except LedgerUnavailable as error:
            _log.warning("a group of %d journal entries is not posted: %s", len(group), error)
            answers = [error] * len(group)
        except Exception as error:  # noqa: BLE001  the thread's edge: it outlives whatever happens to a group
            _log.exception("a group of %d journal entries could not be posted", len(group))
            answers = [DatabaseFailing(f"the ledger could not be written: {type(error).__name__}")] * len(group)
        for waiting, answer in zip(group, answers, strict=True):
            if isinstance(answer, Posted):
                waiting.future.set_result(answer)
            else:
                waiting.future.set_exception(answer)

    def _book(self, postings: list[Posting]) -> Sequence[Posted | LedgerError]:
        """Book a group. Retry if the database is busy, restarted, unreachable or frozen.

        A commit that was cut off may have happened. The keys tell: the next attempt finds those events booked.
        """
        for attempt in range(self._attempts_max - 1):
            try:
                return self._journal.book(postings)
            except (OperationalError, InterfaceError, InternalError) as error:
                _log.warning("posting %d journal entries failed, trying again: %s", len(postings), error.orig)
                if self._abandoned.wait(_FIRST_PAUSE_S * 2**attempt):
                    break
        return self._journal.book(postings)
