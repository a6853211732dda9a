"""Connect to the leader's server: send a group of events, read its answers, then send the next group."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from accounting.ledger.postings import Posting
from accounting.replication.credentials import Credentials, peer_fingerprint, refuse_other_protocols
from accounting.replication.errors import FrameInvalid, LeaderAway
from accounting.replication.frames import Reply, pack_events, read_frame, unpack_answers
from accounting.replication.leader_lease import Leader

CONNECT_S = 3.0
ANSWER_S = 15.0
"""Longest wait for the leader's answers: longer than its own for the database. A lost connection shows sooner."""


class LeaderConnection:
    """A connection to one leader, used by one thread. Any thread may `cut` it, which ends a wait at once."""

    def __init__(self, leader: Leader, connection: ssl.SSLSocket) -> None:
        self.leader = leader
        self._connection = connection

    @classmethod
    def dial(cls, leader: Leader, credentials: Credentials, certificate: str) -> "LeaderConnection":
        """Connect to the leader, which must hold the key of `certificate`. Raises LeaderAway."""
        host, _, port = leader.address.rpartition(":")
        try:
            bare = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except (OSError, ValueError) as error:
            raise LeaderAway(
                f"{leader.holder} leads the ledger, and {leader.address} cannot be reached: {error}"
            ) from None
        try:
            connection = credentials.client_context(certificate).wrap_socket(bare)
        except OSError as error:
            bare.close()
            raise LeaderAway(f"{leader.address} is not the expected leader of the ledger: {error}") from None
        link = cls(leader, connection)
        if peer_fingerprint(connection) != leader.fingerprint:
            link.close()
            raise LeaderAway(f"{leader.address} is not the expected leader of the ledger")
        try:
            refuse_other_protocols(connection)
        except LeaderAway:
            link.close()
            raise
        connection.settimeout(ANSWER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def ask(self, postings: Sequence[Posting]) -> list[Reply]:
        """Return the leader's answer to each event, in order.

        Raises:
            LeaderAway: no answer came. Each event may have been booked; the same keys may be sent again.
            FrameInvalid: the leader answered fewer or more events than it was sent.
        """
        answers: list[Reply] = []
        try:
            for frame in pack_events(postings):
                self._connection.sendall(frame)
                content = read_frame(self._connection)
                if not content:
                    raise LeaderAway(f"{self.leader.address} has closed the link")
                answers += unpack_answers(content)
        except OSError as error:
            raise LeaderAway(f"the link to {self.leader.address} is lost: {error}") from None
        if len(answers) != len(postings):
            raise FrameInvalid(f"{len(answers)} answers for {len(postings)} events")
        return answers

    def cut(self) -> None:
        """End any wait on the link. Callable from any thread."""
        cut(self._connection)

    def close(self) -> None:
        self._connection.close()


class LeaderClient:
    """Keep one link to the current leader, dialled when it is first needed and after a change of leader.

    Belongs to the poster's thread, except for `cut_old`.

    Args:
        credentials: this process's key and certificate.
        certificates: returns every gateway's certificate (PEM) by its fingerprint.
    """

    def __init__(self, credentials: Credentials, certificates: Callable[[], dict[str, str]]) -> None:
        self._credentials = credentials
        self._certificates = certificates
        self._link: LeaderConnection | None = None

    def ask(self, leader: Leader, postings: Sequence[Posting]) -> list[Reply]:
        """Return the leader's answer to each event, in order.

        Raises LeaderAway; the next call then dials again.
        """
        try:
            return self._linked(leader).ask(postings)
        except LeaderAway:
            self.close()
            raise

    def cut_old(self, epoch: int) -> None:
        """End a wait for the leader of an older epoch, which may be frozen and never answer."""
        link = self._link
        if link and link.leader.epoch != epoch:
            link.cut()

    def close(self) -> None:
        link, self._link = self._link, None
        if link:
            link.close()

    def _linked(self, leader: Leader) -> LeaderConnection:
        if self._link is None or self._link.leader.epoch != leader.epoch:
            self.close()
            try:
                certificate = self._certificates().get(leader.fingerprint)
            except SQLAlchemyError as error:
                reason = f"the leader's certificate cannot be read: {type(error).__name__}"
                raise LeaderAway(reason) from None
            if certificate is None:
                raise LeaderAway("the leader of the ledger has not registered its certificate")
            self._link = LeaderConnection.dial(leader, self._credentials, certificate)
        return self._link


def cut(connection: socket.socket) -> None:
    """Shut a connection beneath its TLS, which wakes a thread that waits on it.

    The caller still has to close it.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
