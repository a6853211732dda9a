"""Data-plane links: one direction each, blocking sockets under mutual TLS, a thread at either end.

A link carries frames one way only, because OpenSSL forbids reading and writing one connection from two
threads at once. Blocking sockets cost a quarter of asyncio's time per hop (docs/decisions/0003).
"""

import contextlib
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost, PeerRejected
from cluster.identity import Identity, Peer, read_peer

log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
OUTBOX_FRAMES = 64

_HANDSHAKES_MAX = 32
# Below this size one write of a joined frame beats two writes of its parts.
_JOIN_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Frame:
    message: wire.Message
    payload: bytearray


class Link:
    """One TLS connection between two processes of the cluster, used in one direction."""

    def __init__(self, connection: ssl.SSLSocket, peer: Peer, address: str) -> None:
        self.peer = peer
        self.address = address
        self._connection = connection

    def send(self, message: wire.Message, payload: memoryview | bytes = b"") -> None:
        """Blocks while the peer does not read. Raises LinkLost."""
        head = wire.encode(message, len(payload))
        try:
            if len(payload) <= _JOIN_BYTES:
                self._connection.sendall(head + payload)
            else:
                self._connection.sendall(head)
                self._connection.sendall(payload)
        except (OSError, ValueError) as error:
            raise LinkLost(f"link to {self.address} broke: {error}") from None

    def receive(self, payload_bytes_max: int = wire.PAYLOAD_BYTES_MAX) -> Frame:
        """The next frame. Raises LinkLost and FrameInvalid."""
        header = self._read(wire.HEADER.size)
        message_bytes, payload_bytes = wire.read_header(header, payload_bytes_max=payload_bytes_max)
        message = wire.decode(self._read(message_bytes))
        return Frame(message, self._read(payload_bytes))

    def close(self) -> None:
        """Also wakes a thread that is blocked in send or receive."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()

    def _read(self, size_bytes: int) -> bytearray:
        content = bytearray(size_bytes)
        view, done = memoryview(content), 0
        while done < size_bytes:
            try:
                got = self._connection.recv_into(view[done:])
            except (OSError, ValueError) as error:
                raise LinkLost(f"link from {self.address} broke: {error}") from None
            if not got:
                raise LinkLost(f"{self.address} closed the link")
            done += got
        return content


def dial(address: wire.Address, identity: Identity, timeout_s: float = 10.0) -> Link:
    """Open a link to write to. Raises PeerRejected when another identity answers, LinkLost when none."""
    where = f"{address.host}:{address.port}"
    try:
        plain = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection = identity.client_context().wrap_socket(plain)
        peer = read_peer(connection)
    except ssl.SSLError as error:
        raise PeerRejected(f"{where} refused or failed the TLS handshake: {error.reason}") from None
    except OSError as error:
        raise LinkLost(f"cannot reach {where}: {error}") from None
    if peer.node_id != address.node_id:
        connection.close()
        raise PeerRejected(f"{where} is not the machine it should be")
    _tune(connection)
    return Link(connection, peer, where)


class Listener:
    """Accepts links and hands each, handshake done, to `on_link` on a thread of its own."""

    def __init__(self, host: str, identity: Identity, on_link: Callable[[Link], None]) -> None:
        self._context = identity.server_context()
        self._on_link = on_link
        self._handshakes = threading.BoundedSemaphore(_HANDSHAKES_MAX)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="link listener", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, (host, port, *_) = self._listening.accept()
            except OSError:
                return
            if not self._handshakes.acquire(blocking=False):
                log.warning("link refused", peer=f"{host}:{port}", reason="too many handshakes at once")
                plain.close()
                continue
            thread = threading.Thread(target=self._admit, args=(plain, f"{host}:{port}"), daemon=True)
            thread.name = f"link from {host}"
            thread.start()

    def _admit(self, plain: socket.socket, address: str) -> None:
        try:
            plain.settimeout(HANDSHAKE_TIMEOUT_S)
            connection = self._context.wrap_socket(plain, server_side=True)
            link = Link(connection, read_peer(connection), address)
            _tune(connection)
        except (OSError, PeerRejected) as error:
            plain.close()
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            log.warning("link refused", peer=address, reason=reason)
            return
        finally:
            self._handshakes.release()
        try:
            self._on_link(link)
        except (LinkLost, FrameInvalid, PeerRejected) as error:
            log.info("link ended", peer=address, reason=str(error))
        finally:
            link.close()


class Outbox:
    """A bounded queue before a link, with the one thread that writes it: computing goes on while bytes leave."""

    def __init__(self, link: Link, on_lost: Callable[[LinkLost], None]) -> None:
        self._link = link
        self._on_lost = on_lost
        self._frames: queue.Queue[tuple[wire.Message, memoryview | bytes] | None] = queue.Queue(OUTBOX_FRAMES)
        self._thread = threading.Thread(target=self._write, name=f"link to {link.address}", daemon=True)
        self._thread.start()

    def put(self, message: wire.Message, payload: memoryview | bytes = b"") -> None:
        """Blocks while the queue is full: the peer's pace is ours."""
        self._frames.put((message, payload))

    def close(self) -> None:
        self._link.close()
        with contextlib.suppress(queue.Full):
            self._frames.put_nowait(None)

    def _write(self) -> None:
        lost = False
        while (frame := self._frames.get()) is not None:
            if lost:
                continue  # Keep emptying, so that nobody blocks on a dead link.
            try:
                self._link.send(*frame)
            except LinkLost as error:
                lost = True
                self._on_lost(error)


def _tune(connection: ssl.SSLSocket) -> None:
    """Blocking for ever at our level, but not in the kernel's: a dead peer is noticed within seconds."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 5000),
    ):
        if hasattr(socket, option):  # Linux has all four; others keep their defaults.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
