"""Data-plane links: one direction each, blocking sockets under mutual TLS, a thread at either end.

A link carries frames one way only, because OpenSSL forbids reading and writing one connection from two threads at
once. Blocking sockets cost a quarter of asyncio's time per hop (docs/decisions/0003).
"""

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost, PeerRejected
from cluster.net.sockets import tune
from cluster.trust.identity import Identity, Peer, ServerContexts

log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
OUTBOX_FRAMES = 64

# One link is in use at a time; the others are about to be refused or have just ended.
_LINKS_MAX = 32
_ACCEPT_PAUSE_S = 0.5
_ROOM_WAIT_S = 1.0
# Below this size, writing one joined frame is faster than writing its two parts.
_JOIN_BYTES = 64 * 2**10
_HELLO_BYTES_MAX = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Frame:
    """A message from a link, with its payload."""

    message: wire.Message
    payload: bytearray


class Link:
    """One TLS connection between two processes of the cluster, used in one direction.

    `on_settled` is called when the link is settled, and when it is closed.
    """

    def __init__(
        self, connection: ssl.SSLSocket, peer: Peer, address: str, on_settled: Callable[[], None] | None = None
    ) -> None:
        self.peer = peer
        self.address = address
        self._connection = connection
        self._on_settled = on_settled

    def send(self, message: wire.Message, payload: memoryview | bytes = b"") -> None:
        """Send one frame. Block while the peer does not read. Raise LinkLost if the link breaks."""
        opening = wire.encode(message, len(payload))
        try:
            if len(payload) <= _JOIN_BYTES:
                self._connection.sendall(opening + payload)
            else:
                self._connection.sendall(opening)
                self._connection.sendall(payload)
        except (OSError, ValueError) as error:
            raise LinkLost(f"link to {self.address} broke: {error}") from None

    def receive(self, payload_bytes_max: int = wire.PAYLOAD_BYTES_MAX) -> Frame:
        """Return the next frame. Raise LinkLost or FrameInvalid."""
        header = self._read(wire.HEADER.size)
        message_bytes, payload_bytes = wire.read_header(header, payload_bytes_max=payload_bytes_max)
        message = wire.decode(self._read(message_bytes))
        return Frame(message, self._read(payload_bytes))

    def receive_hello(self) -> wire.Message:
        """Return the first message: short, and complete within HANDSHAKE_TIMEOUT_S.

        Raise LinkLost or FrameInvalid.
        """
        until_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        header = self._read(wire.HEADER.size, until_s)
        message_bytes, _ = wire.read_header(header, _HELLO_BYTES_MAX, payload_bytes_max=0)
        return wire.decode(self._read(message_bytes, until_s))

    def settle(self) -> None:
        """Remove the read timeout. The kernel still notices a dead peer."""
        self._connection.settimeout(None)
        if self._on_settled:
            self._on_settled()

    def close(self) -> None:
        """Close the link. This also wakes a thread that is blocked in send or receive."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()
        if self._on_settled:
            self._on_settled()

    def _read(self, size_bytes: int, until_s: float | None = None) -> bytearray:
        content = bytearray(size_bytes)
        view, done = memoryview(content), 0
        while done < size_bytes:
            try:
                if until_s is not None:
                    self._connection.settimeout(self._left_s(until_s))
                got = self._connection.recv_into(view[done:])
            except (OSError, ValueError) as error:
                raise LinkLost(f"link from {self.address} broke: {error}") from None
            if not got:
                raise LinkLost(f"{self.address} closed the link")
            done += got
        return content

    def _left_s(self, until_s: float) -> float:
        if (left_s := until_s - time.monotonic()) <= 0:
            raise LinkLost(f"{self.address} sent no complete hello within {HANDSHAKE_TIMEOUT_S:.0f} s")
        return left_s


def dial(address: wire.Address, identity: Identity, timeout_s: float = 10.0) -> Link:
    """Open a link to write to. Raise PeerRejected if another identity answers, LinkLost if none does."""
    where = f"{address.host}:{address.port}"
    try:
        plain = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection = identity.client_context().wrap_socket(plain)
    except ssl.SSLError as error:
        raise PeerRejected(f"{where} refused or failed the TLS handshake: {error.reason}") from None
    except (OSError, ValueError, OverflowError) as error:  # The latter two are raised for an invalid address.
        raise LinkLost(f"cannot reach {where}: {error}") from None
    try:
        peer = identity.admit(connection)
        if peer.node_id != address.node_id:
            raise PeerRejected(f"{where} is not the expected machine")
    except PeerRejected:
        connection.close()
        raise
    tune(connection)
    link = Link(connection, peer, where)
    link.settle()
    return link


class Listener:
    """Accepts links and hands each, after its handshake, to `on_link` on its own thread.

    An arriving link has HANDSHAKE_TIMEOUT_S for each read until `on_link` settles it. If there are too many links,
    the oldest one without a certificate is closed, or else the oldest that is not settled.
    """

    def __init__(self, host: str, identity: Identity, on_link: Callable[[Link], None]) -> None:
        self._identity = identity
        self._contexts = ServerContexts(identity)
        self._on_link = on_link
        self._pending: dict[ssl.SSLSocket, None] = {}
        self._unsettled: dict[ssl.SSLSocket, None] = {}
        self._changing = threading.Lock()
        self._free_threads = threading.BoundedSemaphore(_LINKS_MAX)
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="link listener", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, (host, port, *_) = self._listening.accept()
            except OSError as error:
                if self._closed:
                    return
                # Possibly out of file descriptors: other connections may free some.
                log.error("cannot accept links", reason=str(error))
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            if not self._free_threads.acquire(blocking=False) and not self._make_room():
                log.warning("link refused", peer=f"{host}:{port}", reason="too many links at once")
                plain.close()
                continue
            thread = threading.Thread(target=self._admit, args=(plain, f"{host}:{port}"), daemon=True)
            thread.name = f"link from {host}"
            thread.start()

    def _make_room(self) -> bool:
        with self._changing:
            unsure = self._pending or self._unsettled
            oldest = next(iter(unsure), None)
            if oldest is None:
                return False
            del unsure[oldest]
            with contextlib.suppress(OSError):
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # Its thread wakes and releases the semaphore.
        return self._free_threads.acquire(timeout=_ROOM_WAIT_S)

    def _admit(self, plain: socket.socket, address: str) -> None:
        try:
            if link := self._handshake(plain, address):
                self._serve(link)
        finally:
            self._free_threads.release()

    def _handshake(self, plain: socket.socket, address: str) -> Link | None:
        connection: ssl.SSLSocket | None = None
        try:
            plain.settimeout(HANDSHAKE_TIMEOUT_S)
            connection = self._contexts.current.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            with self._changing:
                self._pending[connection] = None
            connection.do_handshake()
            tune(connection)
            peer = self._identity.admit(connection)
            with self._changing:
                self._pending.pop(connection, None)
                self._unsettled[connection] = None
            return Link(connection, peer, address, partial(self._forget, connection))
        except (OSError, PeerRejected) as error:
            if connection:
                self._forget(connection)
            (connection or plain).close()
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            log.warning("link refused", peer=address, reason=reason)
            return None

    def _forget(self, connection: ssl.SSLSocket) -> None:
        with self._changing:
            self._pending.pop(connection, None)
            self._unsettled.pop(connection, None)

    def _serve(self, link: Link) -> None:
        try:
            self._on_link(link)
        except LinkLost as error:
            log.info("link ended", peer=link.address, reason=str(error))
        except (FrameInvalid, PeerRejected) as error:
            log.warning("link refused", peer=link.address, reason=str(error))
        finally:
            link.close()


class Outbox:
    """A bounded queue before a link, with the one thread that writes it: computing goes on while bytes leave."""

    def __init__(self, link: Link, on_lost: Callable[[LinkLost], None]) -> None:
        self.link = link
        self._on_lost = on_lost
        self._frames: queue.Queue[tuple[wire.Message, memoryview | bytes] | None] = queue.Queue(OUTBOX_FRAMES)
        self._thread = threading.Thread(target=self._write, name=f"link to {link.address}", daemon=True)
        self._thread.start()

    def put(self, message: wire.Message, payload: memoryview | bytes = b"") -> None:
        """Queue a frame. Block while the queue is full, so that the sender is no faster than the peer."""
        self._frames.put((message, payload))

    def close(self) -> None:
        """Close the link first, which drops the frames that still wait."""
        self.link.close()
        while True:
            try:
                self._frames.put_nowait(None)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._frames.get_nowait()

    def _write(self) -> None:
        lost = False
        while (frame := self._frames.get()) is not None:
            if lost:
                continue  # Keep emptying the queue, so that no thread blocks on a dead link.
            try:
                self.link.send(*frame)
            except LinkLost as error:
                lost = True
                self._on_lost(error)
