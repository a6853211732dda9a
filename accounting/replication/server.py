"""Run the leader's RPC server: it passes events of other gateways to the one writer and returns the results.

Each connection has a thread. There are as many as gateways that share the ledger, and a few for clients that have
not authenticated yet. The server always listens, so its address is known before this process claims the lease.
While it is shut it admits no client.
"""

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy.exc import SQLAlchemyError

from accounting.errors import DatabaseFailing, LedgerError
from accounting.ledger.postings import Posted, Posting
from accounting.replication.client import cut
from accounting.replication.credentials import Credentials, peer_fingerprint, refuse_other_protocols
from accounting.replication.errors import LeaderAway
from accounting.replication.frames import Reply, pack_answers, read_frame, unpack_events
from accounting.replication.handshakes import UNDER_WAY_MAX, Handshakes

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 128
"""Most gateways at once. Clients that are still in a handshake are not counted."""
HANDSHAKE_S = 3.0
"""Longest handshake, from its first byte to its last."""
SILENCE_S = 120.0
"""The server closes a link that is silent for this many seconds. Its gateway dials again when it needs one."""
BOOKING_S = 12.0
"""Longest wait for the writer's answers to one frame."""
TRUSTED_S = 0.5
"""Longest time until a newly registered certificate is known here, in seconds."""
_ACCEPT_PAUSE_S = 0.5
# Threads of evicted clients end in a moment, unless they wait for the database.
_THREADS_MAX = CONNECTIONS_MAX + 2 * UNDER_WAY_MAX
_ENDED = (errno.EINVAL, errno.EBADF)


class LeaderServer:
    """Own a listening port, its thread, and a thread for each connection.

    Args:
        credentials: this process's key and certificate.
        certificates: returns every gateway's certificate (PEM) by its fingerprint.
        submit: hands an event to the writer.
    """

    def __init__(
        self,
        credentials: Credentials,
        certificates: Callable[[], dict[str, str]],
        submit: "Callable[[Posting], Future[Posted]]",
    ) -> None:
        self._trust = _Trust(credentials, certificates)
        self._submit = submit
        self._listening: socket.socket | None = None
        self._is_open = False
        self._links: dict[threading.Thread, socket.socket] = {}
        self._handshakes = Handshakes[threading.Thread]()
        self._changing = threading.Lock()

    def listen(self, host: str, port: int) -> int:
        """Take a port and return it. Raises OSError if it is already taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = listening = socket.create_server((host, port), family=family, backlog=64)
        threading.Thread(target=self._accept, args=(listening,), name="ledger server", daemon=True).start()
        return int(listening.getsockname()[1])

    def open(self) -> None:
        """Admit gateways from now on."""
        with self._changing:
            self._is_open = True

    def shut(self) -> None:
        """End every connection and admit no client. Events that were received may still be booked."""
        with self._changing:
            self._is_open = False
            for link in self._links.values():
                cut(link)

    def close(self) -> None:
        """Shut down for good, and wait up to a second for each thread."""
        self.shut()
        if self._listening:
            cut(self._listening)
        with self._changing:
            threads = list(self._links)
        for thread in threads:
            thread.join(1.0)

    def _accept(self, listening: socket.socket) -> None:
        with listening:
            while True:
                try:
                    connection, address = listening.accept()
                except OSError as error:
                    if error.errno in _ENDED:
                        return
                    # For example, no file descriptors are left: connections that close may free some.
                    _log.error("the ledger's server cannot accept connections: %s", error)
                    time.sleep(_ACCEPT_PAUSE_S)
                    continue
                connection.settimeout(HANDSHAKE_S)
                self._receive(connection, str(address[0]))

    def _receive(self, connection: socket.socket, where: str) -> None:
        thread = threading.Thread(target=self._serve, args=(connection, where), name="ledger link", daemon=True)
        with self._changing:
            is_welcome = self._is_open and len(self._links) < _THREADS_MAX
            if is_welcome:
                self._links[thread] = connection
                put_out = self._handshakes.enter(thread, where)
                if put_out is not None:
                    cut(self._links[put_out])
                # `close` joins all threads in the dictionary, and a thread that has not started cannot be joined.
                thread.start()
        if not is_welcome:
            connection.close()

    def _serve(self, connection: socket.socket, where: str) -> None:
        try:
            link = self._admit(connection)
        except (OSError, LedgerError) as error:
            # Any client may connect as often as it likes, so do not log a line for each at a higher level.
            _log.debug("%s was not admitted to the ledger: %s", where, error)
        except Exception:  # noqa: BLE001  the thread's edge: the server stays
            _log.exception("the ledger's server could not check a client")
        else:
            with link:
                self._attend(link, where)
        finally:
            with self._changing:
                self._handshakes.leave(threading.current_thread())
                left = self._links.pop(threading.current_thread())
            left.close()
            connection.close()

    def _attend(self, link: ssl.SSLSocket, where: str) -> None:
        """Book what a gateway sends until it closes the link."""
        try:
            while content := read_frame(link):
                link.sendall(pack_answers(self._book(unpack_events(content))))
        except TimeoutError:
            _log.debug("%s was silent", where)
        except (OSError, LedgerError) as error:
            _log.warning("a link of %s to the ledger ended: %s", where, error)
        except Exception:  # noqa: BLE001  the thread's edge: the server stays
            _log.exception("a link to the ledger failed")

    def _admit(self, connection: socket.socket) -> ssl.SSLSocket:
        """Complete the handshake.

        Raises OSError or LeaderAway if the client is no gateway, or there are too many.
        """
        context = self._trust.context()
        link = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._changing:
            self._links[threading.current_thread()] = link
            self._refuse_unwelcome()
        link.do_handshake()
        self._trust.check(peer_fingerprint(link))
        refuse_other_protocols(link)
        with self._changing:
            self._refuse_unwelcome()
            self._handshakes.leave(threading.current_thread())
        link.settimeout(SILENCE_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def _refuse_unwelcome(self) -> None:
        if not self._is_open or threading.current_thread() not in self._handshakes:
            raise LeaderAway("the server was shut, or other clients took the slots")
        if len(self._links) - len(self._handshakes) >= CONNECTIONS_MAX:
            raise LeaderAway(f"{CONNECTIONS_MAX} gateways are already connected")

    def _book(self, postings: list[Posting | LedgerError]) -> list[Reply]:
        until_s = time.monotonic() + BOOKING_S
        started = [self._start(posting) for posting in postings]
        return [each if isinstance(each, LedgerError) else _answer(each, until_s) for each in started]

    def _start(self, posting: Posting | LedgerError) -> "Future[Posted] | LedgerError":
        if isinstance(posting, LedgerError):
            return posting
        try:
            return self._submit(posting)
        except LedgerError as error:
            return error


class _Trust:
    """The trusted certificates, read from the database again when they are half a second old."""

    def __init__(self, credentials: Credentials, certificates: Callable[[], dict[str, str]]) -> None:
        self._credentials = credentials
        self._certificates = certificates
        self._known: dict[str, str] = {}
        self._context: ssl.SSLContext | None = None
        self._looked_s = -TRUSTED_S
        self._looking = threading.Lock()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises LeaderAway while the database cannot be read."""
        with self._looking:
            if self._context is None or time.monotonic() - self._looked_s >= TRUSTED_S:
                try:
                    known = self._certificates()
                except SQLAlchemyError as error:
                    reason = f"the gateways' certificates cannot be read: {type(error).__name__}"
                    raise LeaderAway(reason) from None
                if self._context is None or known != self._known:
                    self._context, self._known = self._credentials.server_context(known.values()), known
                self._looked_s = time.monotonic()
            return self._context

    def check(self, fingerprint: str) -> None:
        if fingerprint not in self._known:
            raise LeaderAway(f"certificate {fingerprint[:16]} belongs to no gateway of this ledger")


def _answer(future: "Future[Posted]", until_s: float) -> Reply:
    try:
        return future.result(max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return DatabaseFailing("the ledger did not answer in time")
    except LedgerError as error:
        return error
