"""A node's part in measuring links: an echo server, and pings and a burst to other nodes.

It uses the pipeline's own transport, blocking sockets under mutual TLS, so that it measures the cost of real
steps. One link costs about half a megabyte, and only when the controller asks.
"""

import asyncio
import contextlib
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkError, LinkLost, PeerRejected
from cluster.net.sockets import tune
from cluster.net.transport import Link, Listener
from cluster.nodes.condition import read_condition
from cluster.plans.network import Link as LinkFigures
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

PINGS = 9
BURST_BYTES = 256 * 2**10
_DIAL_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 5.0
# More than one measurement ever needs.
_ECHOES_MAX = 64
_ECHO_LINKS_MAX_S = 30.0
_LINUX_IP_MTU = 14
_TCP_HEADERS_BYTES = 40

Send = Callable[[wire.Message], Awaitable[None]]


class LinkProbe:
    """Answers other nodes' pings, and measures the links to the nodes that the controller names."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._host = ""
        self._listener: Listener | None = None
        self._measuring: asyncio.Task[None] | None = None

    def open(self, host: str) -> None:
        """Listen on this address instead of an earlier one. Raise OSError if it is taken."""
        if host != self._host or self._listener is None:
            self._close_listener()
            self._host, self._listener = host, Listener(host, self._identity, self._echo)

    def close(self) -> None:
        if self._measuring:
            self._measuring.cancel()
        self._close_listener()

    def report(self, links: list[wire.MeasuredLink] | None = None) -> wire.LinkReport:
        """Return the port of this node's echo server, the machine's condition and the measured links."""
        port = self._listener.port if self._listener else 0
        return wire.LinkReport(port, links or [], read_condition(self._host))

    def begin(self, order: wire.MeasureLinks, send: Send) -> None:
        """Measure in the background, in place of an older order. `send` takes the report."""
        if self._measuring:
            self._measuring.cancel()
        self._measuring = asyncio.create_task(self._measure(order, send), name="link measurements")

    async def _measure(self, order: wire.MeasureLinks, send: Send) -> None:
        links = []
        for peer in order.peers[: wire.LINK_PEERS_MAX]:
            try:
                figures = await asyncio.to_thread(measure_link, peer, self._identity)
                links.append(wire.MeasuredLink(peer.node_id, figures))
            except LinkError as error:
                log.info("link not measured", peer=f"{peer.host}:{peer.port}", reason=str(error))
                links.append(wire.MeasuredLink(peer.node_id, None, str(error)))
        await send(self.report(links))

    def _close_listener(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None

    def _echo(self, link: Link) -> None:
        """Echo the pings of another node's measurement. The link's timeout ends a silent one. Raise LinkError."""
        if link.peer.role != "node":
            raise PeerRejected("only this cluster's nodes may measure links")
        began_s = time.monotonic()
        for _ in range(_ECHOES_MAX):
            if time.monotonic() - began_s > _ECHO_LINKS_MAX_S:
                raise PeerRejected("the measurement took too long")
            message = link.receive(BURST_BYTES).message
            if not isinstance(message, wire.Tick):
                raise FrameInvalid(f"{type(message).__name__} is no ping")
            link.send(message)


def measure_link(address: wire.Address, identity: Identity) -> LinkFigures:
    """Return delay, jitter and rate from here to that echo server. Block for a moment. Raise LinkError."""
    connection = _dial(address, identity)
    link = Link(connection, identity.admit(connection), f"{address.host}:{address.port}")
    try:
        _ping(link)  # The first ping also pays for what both ends do only once.
        trips_s = [_ping(link) for _ in range(PINGS)]
        burst = bytes(BURST_BYTES)
        _ping(link, burst)  # This opens TCP's window; only the next burst is as fast as the link.
        burst_s = _ping(link, burst)
    finally:
        link.close()
    quarters = statistics.quantiles(trips_s, n=4)
    trip_s = quarters[1]
    return LinkFigures(
        delay_s=trip_s / 2,
        # Half of the spread between the quartiles: one trip that waited for a core is no property of the link.
        jitter_s=(quarters[2] - quarters[0]) / 4,
        bytes_per_s=BURST_BYTES / max(burst_s - trip_s, 1e-5),
        mtu_bytes=_mtu_bytes(connection),
    )


def _ping(link: Link, payload: bytes = b"") -> float:
    began_s = time.perf_counter()
    link.send(wire.Tick(), payload)
    if not isinstance(link.receive(0).message, wire.Tick):
        raise FrameInvalid(f"{link.address} is not an echo server")
    return time.perf_counter() - began_s


def _dial(address: wire.Address, identity: Identity) -> ssl.SSLSocket:
    where = f"{address.host}:{address.port}"
    try:
        plain = socket.create_connection((address.host, address.port), timeout=_DIAL_TIMEOUT_S)
        connection = identity.client_context().wrap_socket(plain)
        connection.settimeout(_ANSWER_TIMEOUT_S)
        tune(connection)
    except ssl.SSLError as error:
        raise PeerRejected(f"{where} refused or failed the TLS handshake: {error.reason}") from None
    except (OSError, ValueError, OverflowError) as error:
        raise LinkLost(f"cannot reach {where}: {error}") from None
    try:
        if identity.admit(connection).node_id != address.node_id:
            raise PeerRejected(f"{where} is not the expected machine")
    except PeerRejected:
        connection.close()
        raise
    return connection


def _mtu_bytes(connection: ssl.SSLSocket) -> int:
    """Return the largest packet of the path in bytes, as far as the system knows it; 1500 if it does not tell."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux" and connection.family == socket.AF_INET:
            return connection.getsockopt(socket.IPPROTO_IP, _LINUX_IP_MTU)
        if hasattr(socket, "TCP_MAXSEG"):
            return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) + _TCP_HEADERS_BYTES
    return 1500
