"""Share the ledger among several gateways: one writes, the others send it their events, and any can take over.

A process holds the leader lease for a few seconds at a time. Every transaction that books checks its epoch
(`leader_lease.fence`), so a process that was frozen, cut off or late cannot commit behind its successor's back.
A gateway sends unanswered events again under the same keys, to the same leader or the next.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, LedgerBusy, LedgerUnavailable
from accounting.ledger.journal import Failpoint, Journal, OnFailpoint
from accounting.ledger.postings import Posted, Posting
from accounting.replication.client import LeaderClient
from accounting.replication.credentials import make_credentials
from accounting.replication.errors import Deposed, LeaderAway
from accounting.replication.frames import Reply
from accounting.replication.leader_lease import LEASE_S, REGISTERED_S, Leader, LeaderLease, fence
from accounting.replication.server import LeaderServer

_log = logging.getLogger(__name__)

RENEW_S = 1.0
PATIENCE_S = 12.0
"""Longest wait of a group for a leader's answer, in seconds: time for a lease to end and another to begin."""
_LOOK_S = 0.25
_STOP_S = 5.0
_REFRESH_S = REGISTERED_S / 4


def _no_failpoint(_: Failpoint) -> None:
    return None


class SharedLedger:
    """Book groups for a `Poster`: in this process while it leads, at the leader while another process does.

    Owns the server for others' events, and a thread that renews, claims or watches the leader lease.

    Args:
        open_session: returns sessions that may write.
        host: where the server listens; `port` 0 takes a free one.
        reached_at: host or host:port where others reach it, if that differs from where it listens.
        lease_s: how long a silent leader keeps the lease, in seconds.
        patience_s: longest wait of a group for a leader, in seconds.
        clock_ns, failpoint: as in `Journal`.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        reached_at: str | None = None,
        lease_s: float = LEASE_S,
        patience_s: float = PATIENCE_S,
        clock_ns: Callable[[], int] = time.time_ns,
        failpoint: OnFailpoint = _no_failpoint,
    ) -> None:
        self._credentials = make_credentials(socket.gethostname())
        self._lease = LeaderLease(
            open_session,
            socket.gethostname(),
            self._credentials.fingerprint,
            self._credentials.certificate,
            lease_s,
        )
        self._journal = Journal(open_session, clock_ns, failpoint, fence=self._check)
        self._host, self._port, self._address = host, port, reached_at or host
        self._lease_s, self._patience_s = lease_s, patience_s
        self._server: LeaderServer | None = None
        self._client = LeaderClient(self._credentials, self._lease.certificates)
        self._epoch: int | None = None
        self._leader: Leader | None = None
        self._renewed_s = self._registered_s = float("-inf")
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, name="ledger leader", daemon=True)

    def start(self, submit: "Callable[[Posting], Future[Posted]]") -> None:
        """Accept others' events, hand them to `submit`, and lead if no other gateway does.

        Raises:
            OSError: the port is taken, or the host is not an address of this machine.
        """
        self._server = LeaderServer(self._credentials, self._lease.certificates, submit)
        port = self._server.listen(self._host, self._port)
        self._address = with_port(self._address, port)
        self._step()
        self._thread.start()

    def stop(self) -> None:
        """Release the leader lease at once. Book nothing after this call."""
        self._stopping = True
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        if self._server:
            self._server.close()
        self._client.close()
        epoch, self._epoch = self._epoch, None
        try:
            self._lease.leave(epoch)
        except SQLAlchemyError as error:
            _log.warning("the ledger could not be handed over: %s", _short(error))

    @property
    def fingerprint(self) -> str:
        """This gateway's fingerprint, as the database's tables name it."""
        return self._credentials.fingerprint

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
        until_s = time.monotonic() + self._patience_s
        answers: list[Reply | None] = [None] * len(postings)
        left = list(range(len(postings)))
        while True:
            try:
                for at, answer in zip(left, self._book_once([postings[at] for at in left]), strict=True):
                    answers[at] = answer
                # A leader that is ending answers what it has booked. Its successor takes the rest.
                left = [at for at in left if _is_open(answers[at])]
                reason = LeaderAway("the leader of the ledger is ending")
            except LeaderAway as error:
                reason = error
            if not left:
                return [answer for answer in answers if answer is not None]
            if time.monotonic() > until_s or self._stopping:
                raise reason
            self._await_change()

    def _book_once(self, postings: Sequence[Posting]) -> Sequence[Reply]:
        if self._epoch is not None:
            return self._journal.book(postings)
        leader = self._leader
        if leader is None or not leader.is_live or not leader.address:
            raise LeaderAway("no gateway leads the ledger at the moment")
        return self._client.ask(leader, postings)

    def _await_change(self) -> None:
        """Have the thread check the lease now, and wait up to `_LOOK_S` for the outcome."""
        self._hurry.set()
        with self._changed:
            self._changed.wait(_LOOK_S)

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
            if time.monotonic() - self._registered_s > _REFRESH_S:
                self._lease.register()
                self._registered_s = time.monotonic()
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
        claimed = self._lease.claim(self._address)
        if claimed is None:
            self._follow(self._lease.leader())
            return
        self._client.cut_old(claimed)
        assert self._server
        self._renewed_s, self._epoch, self._leader = began_s, claimed, None
        self._server.open()
        _log.info("this gateway leads the ledger, epoch %d", claimed)

    def _follow(self, leader: Leader) -> None:
        before, self._leader = self._leader, leader
        if before is None or before.epoch != leader.epoch:
            _log.info("the ledger is led by %s at %s, epoch %d", leader.holder, leader.address, leader.epoch)
        self._client.cut_old(leader.epoch)

    def _yield_lease(self, epoch: int) -> None:
        with self._changed:
            if self._epoch != epoch:
                return
            self._epoch = None
        _log.warning("another gateway has taken over the ledger: epoch %d has ended", epoch)
        if self._server:
            self._server.shut()


def with_port(address: str, port: int) -> str:
    """Return host:port for an address that may already have a port."""
    host, colon, own_port = address.rpartition(":")
    if colon and own_port.isdecimal() and (":" not in host or host.startswith("[")):
        return address
    bare = address.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _is_open(answer: Reply | None) -> bool:
    """Return whether the event is undecided because a leader ended or lost the lease meanwhile."""
    return isinstance(answer, LedgerUnavailable) and not isinstance(answer, LedgerBusy | DatabaseFailing)


def _short(error: SQLAlchemyError) -> str:
    return type(error).__name__
