"""The leader's door: takes events from other gateways for the one writer, and sends back what became of them.

A connection is a thread, of which there are as many as gateways that share the books, and a few for those who
still have to show who they are. The door listens all the time, so that its address is known before the seat is
claimed, and lets nobody in while it is shut.
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
from accounting.leading.errors import LeaderAway
from accounting.leading.frames import Reply, pack_answers, read_frame, unpack_events
from accounting.leading.link import cut
from accounting.leading.newcomers import UNDER_WAY_MAX, Newcomers
from accounting.leading.papers import Papers, peer_fingerprint, refuse_other_protocols
from accounting.ledger.postings import Posted, Posting

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 128
"""Gateways at once; strangers are not among them."""
HANDSHAKE_S = 3.0
"""Longest handshake, from its first byte to its last."""
SILENCE_S = 120.0
"""A link that says nothing for so long is closed; whoever wants it again dials again."""
BOOKING_S = 12.0
"""Longest wait for the writer's answers to one frame."""
TRUSTED_S = 0.5
"""How long it may take until a certificate that was registered is known here."""
_ACCEPT_PAUSE_S = 0.5
# Those who were put out end in a moment, unless their threads wait for the database.
_THREADS_MAX = CONNECTIONS_MAX + 2 * UNDER_WAY_MAX
_ENDED = (errno.EINVAL, errno.EBADF)


class Door:
    """Owns a listening port, its thread, and a thread for each connection.

    Args:
        papers: who we are.
        certificates: gives every gateway's certificate (PEM) by its fingerprint.
        submit: the writer's.
    """

    def __init__(
        self,
        papers: Papers,
        certificates: Callable[[], dict[str, str]],
        submit: "Callable[[Posting], Future[Posted]]",
    ) -> None:
        self._trust = _Trust(papers, certificates)
        self._submit = submit
        self._listening: socket.socket | None = None
        self._is_open = False
        self._links: dict[threading.Thread, socket.socket] = {}
        self._newcomers = Newcomers[threading.Thread]()
        self._changing = threading.Lock()

    def listen(self, host: str, port: int) -> int:
        """Take a port and return it. Raises OSError when it is taken already."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = listening = socket.create_server((host, port), family=family, backlog=64)
        threading.Thread(target=self._accept, args=(listening,), name="books door", daemon=True).start()
        return int(listening.getsockname()[1])

    def open(self) -> None:
        """Let gateways in from now on."""
        with self._changing:
            self._is_open = True

    def shut(self) -> None:
        """End every connection and let nobody in; what they have sent may still be booked."""
        with self._changing:
            self._is_open = False
            for link in self._links.values():
                cut(link)

    def close(self) -> None:
        """Shut for good, and wait a moment for the threads."""
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
                    # Out of file descriptors, say: those who hold them may give some back.
                    _log.error("the books' door cannot accept connections: %s", error)
                    time.sleep(_ACCEPT_PAUSE_S)
                    continue
                connection.settimeout(HANDSHAKE_S)
                self._receive(connection, str(address[0]))

    def _receive(self, connection: socket.socket, where: str) -> None:
        thread = threading.Thread(target=self._serve, args=(connection, where), name="books link", daemon=True)
        with self._changing:
            is_welcome = self._is_open and len(self._links) < _THREADS_MAX
            if is_welcome:
                self._links[thread] = connection
                put_out = self._newcomers.enter(thread, where)
                if put_out is not None:
                    cut(self._links[put_out])
                # Whoever closes the door joins all threads that are here: it finds none that has not begun.
                thread.start()
        if not is_welcome:
            connection.close()

    def _serve(self, connection: socket.socket, where: str) -> None:
        try:
            link = self._admit(connection)
        except (OSError, LedgerError) as error:
            # Anybody may knock, as often as they like: not a line of the log for each.
            _log.debug("%s was not let in to the books: %s", where, error)
        except Exception:  # noqa: BLE001  the thread's edge: the door stays
            _log.exception("the books' door could not look at who came")
        else:
            with link:
                self._attend(link, where)
        finally:
            with self._changing:
                self._newcomers.leave(threading.current_thread())
                left = self._links.pop(threading.current_thread())
            left.close()
            connection.close()

    def _attend(self, link: ssl.SSLSocket, where: str) -> None:
        """Book what a gateway sends until it hangs up."""
        try:
            while content := read_frame(link):
                link.sendall(pack_answers(self._book(unpack_events(content))))
        except TimeoutError:
            _log.debug("%s was silent", where)
        except (OSError, LedgerError) as error:
            _log.warning("a link of %s to the books ended: %s", where, error)
        except Exception:  # noqa: BLE001  the thread's edge: the door stays
            _log.exception("a link to the books failed")

    def _admit(self, connection: socket.socket) -> ssl.SSLSocket:
        """Shake hands. Raises OSError and LeaderAway for whoever is none of the gateways, or one too many."""
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
            self._newcomers.leave(threading.current_thread())
        link.settimeout(SILENCE_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    def _refuse_unwelcome(self) -> None:
        if not self._is_open or threading.current_thread() not in self._newcomers:
            raise LeaderAway("the door was shut, or others came")
        if len(self._links) - len(self._newcomers) >= CONNECTIONS_MAX:
            raise LeaderAway(f"{CONNECTIONS_MAX} gateways are here already")

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
    """Whom the door knows: the certificates of the database, looked up again when they are half a second old."""

    def __init__(self, papers: Papers, certificates: Callable[[], dict[str, str]]) -> None:
        self._papers = papers
        self._certificates = certificates
        self._known: dict[str, str] = {}
        self._context: ssl.SSLContext | None = None
        self._looked_s = -TRUSTED_S
        self._looking = threading.Lock()

    def context(self) -> ssl.SSLContext:
        """Raises LeaderAway while the database does not say."""
        with self._looking:
            if self._context is None or time.monotonic() - self._looked_s >= TRUSTED_S:
                try:
                    known = self._certificates()
                except SQLAlchemyError as error:
                    reason = f"the gateways' certificates cannot be read: {type(error).__name__}"
                    raise LeaderAway(reason) from None
                if self._context is None or known != self._known:
                    self._context, self._known = self._papers.server_context(known.values()), known
                self._looked_s = time.monotonic()
            return self._context

    def check(self, fingerprint: str) -> None:
        if fingerprint not in self._known:
            raise LeaderAway(f"certificate {fingerprint[:16]} is of no gateway of these books")


def _answer(future: "Future[Posted]", until_s: float) -> Reply:
    try:
        return future.result(max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return DatabaseFailing("the books did not answer in time")
    except LedgerError as error:
        return error
