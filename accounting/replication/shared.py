"""Share the ledger among several gateways: one writes, the others send it their events, and any can take over.

A process holds the leader lease for a few seconds at a time. Every transaction that books checks its epoch
(`leader_lease.fence`), so a process that was frozen, cut off or late cannot commit behind its successor's back.
A gateway sends unanswered events again under the same keys, to the same leader or the next.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.ledger.journal import Failpoint, Journal, OnFailpoint
from accounting.ledger.postings import Posted, Posting
from accounting.replication.client import LOOK_S, LeaderClient
from accounting.replication.errors import Deposed, LeaderAway
from accounting.replication.leader_lease import LEASE_S, Leader, LeaderLease, fence
from accounting.replication.messages import Reply
from accounting.replication.server import LeaderServer

_log = logging.getLogger(__name__)

RENEW_S = 1.0
PATIENCE_S = 12.0
"""Longest wait of a group for a leader's answer, in seconds: time for a lease to end and another to begin."""
_STOP_S = 5.0


def _no_failpoint(_: Failpoint) -> None:
    return None


class SharedLedger:
    """Book groups for a `Poster`: in this process while it leads, at the leader while another process does.

    Owns the server of the outbox, and a thread that renews, claims or watches the leader lease.

    Args:
        open_session: returns sessions that may write.
        lease_s: how long a silent leader keeps the lease, in seconds.
        patience_s: longest wait of a group for a leader, in seconds.
        clock_ns, failpoint: as in `Journal`.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        *,
        lease_s: float = LEASE_S,
        patience_s: float = PATIENCE_S,
        clock_ns: Callable[[], int] = time.time_ns,
        failpoint: OnFailpoint = _no_failpoint,
    ) -> None:
        self._gateway = secrets.token_hex(6)
        self.name = f"{socket.gethostname()}/{self._gateway}"
        """This process's name, as the leader's row has it."""
        self._lease = LeaderLease(open_session, self.name, lease_s)
        self._open_session = open_session
        self._journal = Journal(open_session, clock_ns, failpoint, fence=self._check)
        self._lease_s, self._patience_s = lease_s, patience_s
        self._server: LeaderServer | None = None
        self._client = LeaderClient(open_session, self._gateway)
        self._epoch: int | None = None
        self._leader: Leader | None = None
        self._renewed_s = float("-inf")
        self._booking = threading.Lock()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, name="ledger leader", daemon=True)

    def start(self, submit: "Callable[[Posting], Future[Posted]]") -> None:
        """Lead if no other gateway does, and hand others' events to `submit` then."""
        self._server = LeaderServer(self._open_session, self._gateway, submit, lambda: self._epoch)
        self._step()
        self._thread.start()
        self._server.start()

    def stop(self) -> None:
        """Release the leader lease at once. Book nothing after this call."""
        self._stopping = True
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        if self._server:
            self._server.stop()
        # A poster that was abandoned may still use the client: no other thread may close its connection meanwhile.
        if self._booking.acquire(timeout=_STOP_S):
            self._client.close()
            self._booking.release()
        epoch, self._epoch = self._epoch, None
        try:
            if epoch is not None:
                self._lease.leave(epoch)
        except SQLAlchemyError as error:
            _log.warning("the ledger could not be handed over: %s", _short(error))

    @property
    def dropped(self) -> int:
        """Return how many groups of other gateways this process has dropped because of their age."""
        return self._server.dropped if self._server else 0

    @property
    def leads(self) -> bool:
        """Return whether this process writes the ledger, as far as it can tell."""
        return self._epoch is not None and time.monotonic() - self._renewed_s < self._lease_s

    @property
    def epoch(self) -> int:
        """The last epoch of the lease that this process saw. It grows with every change of leader."""
        return self._epoch or (self._leader.epoch if self._leader else 0)

    def book(self, postings: Sequence[Posting]) -> list[Reply]:
        """Return the answer to each event, in order, from the current leader. Belongs to the poster's thread.

        Raises:
            LeaderAway: no leader answered in time; some of the events may have been booked.
            sqlalchemy.exc.DBAPIError: as in `Journal.book`.
        """
        with self._booking:
            if self._stopping:
                raise LeaderAway("this gateway is stopping")
            return self._book(postings)

    def _book(self, postings: Sequence[Posting]) -> list[Reply]:
        until_s = time.monotonic() + self._patience_s

        def may_wait() -> bool:
            # Perhaps there is no leader: have the thread look now.
            self._hurry.set()
            return self._epoch is None and not self._stopping and time.monotonic() < until_s

        while True:
            try:
                if self._epoch is not None:
                    return list(self._journal.book(postings))
                return self._client.ask(postings, may_wait)
            except LeaderAway:
                if time.monotonic() >= until_s or self._stopping:
                    raise
            if self._epoch is None:
                self._await_change()

    def _await_change(self) -> None:
        """Have the thread check the lease now, and wait up to `LOOK_S` for the outcome."""
        self._hurry.set()
        with self._changed:
            self._changed.wait(LOOK_S)

    def _check(self, connection: Connection) -> None:
        """Check the epoch in each transaction. Raises Deposed."""
        epoch = self._epoch
        if epoch is None:
            raise Deposed("this process no longer leads the ledger")
        try:
            fence(connection, epoch)
        except Deposed:
            self._yield_lease(epoch)
            raise

    def _keep(self) -> None:
        while not self._stopping:
            self._hurry.wait(RENEW_S)
            self._hurry.clear()
            if not self._stopping:
                self._step()

    def _step(self) -> None:
        """Renew the lease, claim it, or look up its holder."""
        try:
            self._hold_or_claim()
        except SQLAlchemyError as error:
            _log.warning("the leader lease of the ledger cannot be checked: %s", _short(error))
        except Exception:  # noqa: BLE001  the thread's edge: it goes on
            _log.exception("the leader lease of the ledger could not be renewed")
        with self._changed:
            self._changed.notify_all()

    def _hold_or_claim(self) -> None:
        began_s = time.monotonic()
        epoch = self._epoch
        if epoch is not None:
            if self._lease.renew(epoch):
                self._renewed_s = began_s
                return
            self._yield_lease(epoch)
        claimed = self._lease.claim()
        if claimed is None:
            self._follow(self._lease.leader())
            return
        self._renewed_s, self._epoch, self._leader = began_s, claimed, None
        _log.info("this gateway leads the ledger, epoch %d", claimed)

    def _follow(self, leader: Leader) -> None:
        if self._leader != leader:
            _log.info("the ledger is led by %s, epoch %d", leader.holder, leader.epoch)
        self._leader = leader

    def _yield_lease(self, epoch: int) -> None:
        with self._changed:
            if self._epoch != epoch:
                return
            self._epoch = None
        _log.warning("another gateway has taken over the ledger: epoch %d has ended", epoch)


def _short(error: SQLAlchemyError) -> str:
    return type(error).__name__
