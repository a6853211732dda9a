"""Run the leader's end of the outbox: hand the events of other gateways to the one writer, and write its answers."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import SimpleQueue
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, LedgerBusy, LedgerError, LedgerUnavailable, PosterStopped
from accounting.ledger.postings import Posted, Posting
from accounting.replication.client import LOOK_S
from accounting.replication.errors import MessageInvalid
from accounting.replication.messages import Reply, pack_answers, unpack_events
from accounting.replication.outbox import KEPT_S, ROWS_AT_ONCE, SENT, Outbox, Sent

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a failure of the database, in seconds."""
DROP_EVERY_S = 5.0
_STOP_S = 5.0


class _Booking(NamedTuple):
    """A group whose events were handed to the writer, and the epoch that this process led then."""

    epoch: int
    group: Sent
    events: "list[Future[Posted] | LedgerError]"


class LeaderServer:
    """Own a thread that takes groups from the outbox while this process leads, and one that writes the replies.

    Args:
        open_session: returns sessions that may write.
        gateway: this process's id, whose own groups it leaves alone.
        submit: hands an event to the writer.
        epoch: returns the epoch that this process leads, or None.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        gateway: str,
        submit: "Callable[[Posting], Future[Posted]]",
        epoch: Callable[[], int | None],
    ) -> None:
        self._taking = Outbox(open_session, gateway, SENT)
        self._answering = Outbox(open_session, gateway)
        self._submit = submit
        self._epoch = epoch
        # Both threads change it, each time by one call that no other thread can interrupt.
        self._taken: set[int] = set()
        self._booked: SimpleQueue[_Booking | None] = SimpleQueue()
        self._drops_s = 0.0
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._take, name="ledger server", daemon=True),
            threading.Thread(target=self._answer, name="ledger replies", daemon=True),
        ]
        self.dropped = 0
        """The groups that were dropped because of their age."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. Groups that are not answered stay for the next leader."""
        self._stopping.set()
        self._booked.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_STOP_S)

    def _take(self) -> None:
        while not self._stopping.is_set():
            with self._failures_logged():
                if (epoch := self._epoch()) is None:
                    self._taking.close()
                    self._stopping.wait(LOOK_S)
                else:
                    self._take_once(epoch)
        self._taking.close()

    def _take_once(self, epoch: int) -> None:
        """Hand the groups that are there to the writer, then wait for others."""
        if time.monotonic() >= self._drops_s:
            self._drop_old()
        groups = self._taking.take(list(self._taken))
        for group in groups:
            booking = _Booking(epoch, group, self._start(group))
            self._taken.add(group.sent_ns)
            futures = [each for each in booking.events if isinstance(each, Future)]
            if futures:
                # The writer answers in order.
                futures[-1].add_done_callback(partial(self._finish, booking))
            else:
                self._finish(booking)
        if len(groups) < ROWS_AT_ONCE:
            # A group that came meanwhile has sent its notification, too.
            self._taking.wait(LOOK_S)

    def _finish(self, booking: _Booking, _: object = None) -> None:
        self._booked.put(booking)

    def _drop_old(self) -> None:
        self._drops_s = time.monotonic() + DROP_EVERY_S
        if dropped := self._taking.drop_old():
            self.dropped += len(dropped)
            _log.warning("%d groups of entries were dropped: they waited longer than %g s", len(dropped), KEPT_S)

    def _answer(self) -> None:
        is_over = False
        while not is_over:
            # The writer books many groups in one transaction.
            found = [self._booked.get(), *(self._booked.get() for _ in range(self._booked.qsize()))]
            bookings = [each for each in found if each is not None]
            is_over = len(bookings) < len(found)
            with self._failures_logged():
                self._answer_once(bookings)
            # Those that are not answered are taken again.
            self._taken.difference_update([each.group.sent_ns for each in bookings])
        self._answering.close()

    def _answer_once(self, bookings: Sequence[_Booking]) -> None:
        for epoch, some in groupby(bookings, key=attrgetter("epoch")):
            replies = [(booking.group, [_answer(each) for each in booking.events]) for booking in some]
            decided = [
                (group, pack_answers(answers)) for group, answers in replies if not any(map(_is_open, answers))
            ]
            if decided:
                self._answering.answer(epoch, decided)

    @contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            _log.warning("the outbox of the ledger cannot be read or written: %s", type(error).__name__)
            self._stopping.wait(RETRY_S)
        except Exception:  # noqa: BLE001  the thread's edge: it goes on
            _log.exception("the outbox of the ledger could not be served")
            self._stopping.wait(RETRY_S)

    def _start(self, group: Sent) -> "list[Future[Posted] | LedgerError]":
        try:
            return [self._start_one(posting) for posting in unpack_events(group.events)]
        except MessageInvalid as error:
            # No answers tell its sender that nothing was booked.
            _log.warning("a group of entries of gateway %s was refused: %s", group.gateway, error)
            return []

    def _start_one(self, posting: Posting | LedgerError) -> "Future[Posted] | LedgerError":
        if isinstance(posting, LedgerError):
            return posting
        try:
            return self._submit(posting)
        except LedgerError as error:
            return error


def _answer(event: "Future[Posted] | LedgerError") -> Reply:
    if isinstance(event, LedgerError):
        return event
    try:
        return event.result(0)
    except TimeoutError:
        # The writer has stopped, and its last transaction is not over yet.
        return PosterStopped("the ledger closed before this journal entry was posted")
    except LedgerError as error:
        return error


def _is_open(answer: Reply) -> bool:
    """Return whether the event is undecided because a leader ended or lost the lease meanwhile."""
    return isinstance(answer, LedgerUnavailable) and not isinstance(answer, LedgerBusy | DatabaseFailing)
