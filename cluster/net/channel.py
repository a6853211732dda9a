"""Control-plane connections: frames both ways over mutual TLS on the event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkError, LinkLost, MachineRemoved, PeerRejected, WrongPeer
from cluster.net.sockets import tune
from cluster.trust.identity import Identity, NodeId, Peer, ServerContexts, read_peer

log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 20.0
# The rate of the slowest reasonable link, which adds the time for a payload.
SLOWEST_BYTES_PER_S = 200_000
_CHANNELS_MAX = 1024
# The limit for connections that have not shown a certificate. Beyond it the oldest one is closed.
_PENDING_MAX = 128
_FAREWELL_S = 1.0
_ACCEPT_PAUSE_S = 0.5
# A machine without a certificate sends only a token and a signing request.
_NEWCOMER_BYTES_MAX = 64 * 2**10


@dataclass(slots=True)
class Channel:
    """One connection. `peer` is None only for a machine that is about to join.

    Set `payload_bytes_max` only if payloads are expected; otherwise the peer may send none.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer | None
    address: str
    message_bytes_max: int = wire.MESSAGE_BYTES_MAX
    payload_bytes_max: int = 0
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, message: wire.Message, payload: bytes | memoryview = b"") -> None:
        """Send one frame.

        Raise LinkLost, also if the peer does not take it within SEND_TIMEOUT_S and the time for its payload.
        """
        timeout_s = SEND_TIMEOUT_S + len(payload) / SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(timeout_s), self._sending:
                self.writer.write(wire.encode(message, len(payload)))
                if payload:
                    self.writer.write(payload)
                await self.writer.drain()
        except (OSError, TimeoutError) as error:
            raise LinkLost(f"cannot send to {self.address}: {error}") from None

    async def receive(self, timeout_s: float | None = None) -> tuple[wire.Message, bytes]:
        """Return the next frame.

        Raise LinkLost or FrameInvalid; a silent peer is lost after `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await read_frame(self.reader, self.message_bytes_max, self.payload_bytes_max)
        except TimeoutError:
            raise LinkLost(f"{self.address} has been silent for {timeout_s} s") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            raise LinkLost(f"{self.address} closed the connection") from error

    async def close(self) -> None:
        """Close with a farewell. A peer that does not answer it within a second gets none."""
        self.writer.close()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await self.writer.wait_closed()
        finally:  # Otherwise the socket stays open until a silent peer answers.
            self.writer.transport.abort()


async def read_frame(
    reader: asyncio.StreamReader, message_bytes_max: int = wire.MESSAGE_BYTES_MAX, payload_bytes_max: int = 0
) -> tuple[wire.Message, bytes]:
    """Return the next frame, within bounds. Raise FrameInvalid, asyncio.IncompleteReadError or OSError."""
    header = await reader.readexactly(wire.HEADER.size)
    message_bytes, payload_bytes = wire.read_header(header, message_bytes_max, payload_bytes_max)
    message = wire.decode(await reader.readexactly(message_bytes))
    return message, await reader.readexactly(payload_bytes) if payload_bytes else b""


async def open_channel(address: wire.Address, identity: Identity, timeout_s: float = 10.0) -> Channel:
    """Dial a process of the cluster. Raise PeerRejected if another identity answers, LinkLost if none does.

    Raise MachineRemoved if the machine was removed from the cluster.
    """
    channel = await dial(address.host, address.port, identity.client_context(), timeout_s)
    if channel.peer is None or channel.peer.node_id != address.node_id:
        await channel.close()
        raise PeerRejected(f"{channel.address} is not the expected machine")
    if address.node_id in identity.removed():
        await channel.close()
        raise MachineRemoved(address.node_id)
    return channel


async def dial(host: str, port: int, context: ssl.SSLContext, timeout_s: float = 10.0) -> Channel:
    """Connect to a peer with a certificate that `context` accepts.

    Raise WrongPeer if the handshake fails, and LinkLost if the address cannot be reached.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        raise WrongPeer(f"{host}:{port} refused or failed the TLS handshake: {error.reason}") from None
    except (OSError, ValueError, OverflowError) as error:  # The latter two are raised for an invalid address.
        raise LinkLost(f"cannot reach {host}:{port}: {error}") from None
    tune(writer.get_extra_info("socket"))
    return Channel(reader, writer, _peer_of(writer), f"{host}:{port}")


Serve = Callable[[Channel], Awaitable[None]]


@dataclass(slots=True)
class _Visit:
    """One connection to a server. Until its task has begun, only `_forget` closes it."""

    connection: socket.socket
    where: str
    begun: bool = False
    channel: Channel | None = None


class ChannelServer:
    """A listening port that admits this cluster's machines and, if enabled, new machines. It logs refusals.

    The handler owns its channel until it returns. A LinkError from the handler ends this one connection, and the
    peer gets the reason. If a client opens connections and sends nothing, each new one closes its oldest one.
    This class has its own accept loop because asyncio's TLS server drops failed handshakes without a report.
    """

    def __init__(self, name: str, identity: Identity, serve: Serve, *, newcomers: bool = False) -> None:
        self._name = name
        self._identity = identity
        self._contexts = ServerContexts(identity, certificate_needed=not newcomers)
        self._serve = serve
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        # In the order of their arrival. Those in `_pending` have no channel, or one without a peer.
        self._connections: dict[asyncio.Task[None], _Visit] = {}
        self._pending: dict[asyncio.Task[None], None] = {}

    async def open(self, host: str, port: int) -> int:
        """Start listening and return the port. Raise OSError if it is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=256)
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listening), name=f"{self._name} server")
        return int(self._listening.getsockname()[1])

    async def close(self) -> None:
        tasks = [task for task in (self._accepting, *self._connections) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening:
            self._listening.close()

    def disconnect(self, node_ids: Collection[NodeId]) -> None:
        """End the connections of these machines now."""
        for visit in self._connections.values():
            if (channel := visit.channel) and channel.peer and channel.peer.node_id in node_ids:
                channel.writer.transport.abort()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                # Possibly out of file descriptors: other connections may free some.
                log.error("cannot accept connections", server=self._name, reason=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= _CHANNELS_MAX:
                log.warning(
                    "connection refused", server=self._name, peer=address[0], reason="too many connections"
                )
                connection.close()
                continue
            if len(self._pending) >= _PENDING_MAX:
                self._make_room()
            visit = _Visit(connection, f"{address[0]}:{address[1]}")
            task = asyncio.create_task(self._admit(visit))
            self._connections[task] = visit
            self._pending[task] = None
            task.add_done_callback(self._forget)

    def _make_room(self) -> None:
        oldest = next(iter(self._pending))
        del self._pending[oldest]
        reason = f"it is the oldest of {_PENDING_MAX} connections without a certificate"
        log.warning("connection refused", server=self._name, peer=self._connections[oldest].where, reason=reason)
        oldest.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        visit = self._connections.pop(task)
        self._pending.pop(task, None)
        if not visit.begun:
            visit.connection.close()

    async def _admit(self, visit: _Visit) -> None:
        visit.begun = True
        connection, address = visit.connection, visit.where
        try:
            channel = await _handshake(connection, self._contexts.current, address)
        except (ssl.SSLError, OSError, TimeoutError, PeerRejected) as error:
            connection.close()
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            log.warning(
                "connection refused", server=self._name, peer=address, reason=reason or "handshake timed out"
            )
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        visit.channel = channel
        task = asyncio.current_task()
        if channel.peer and task:
            self._pending.pop(task, None)
        try:
            if channel.peer and channel.peer.node_id in self._identity.removed():
                raise MachineRemoved(channel.peer.node_id)
            await self._serve(channel)
        except LinkLost as error:
            log.info("connection ended", server=self._name, peer=address, reason=str(error))
        except (FrameInvalid, PeerRejected) as error:
            log.warning("connection refused", server=self._name, peer=address, reason=str(error))
            await _bid_farewell(channel, error)
        finally:
            await channel.close()


async def _bid_farewell(channel: Channel, error: LinkError) -> None:
    """Tell a refused peer why, if it listens: it may be a machine of this cluster by mistake."""
    with contextlib.suppress(LinkLost, TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await channel.send(wire.Refused(str(error), removed=isinstance(error, MachineRemoved)))


async def _handshake(connection: socket.socket, context: ssl.SSLContext, address: str) -> Channel:
    loop = asyncio.get_running_loop()
    tune(connection)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=context,
        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
    )
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    peer = _peer_of(writer)
    if peer is None:
        return Channel(reader, writer, None, address, message_bytes_max=_NEWCOMER_BYTES_MAX)
    return Channel(reader, writer, peer, address)


def _peer_of(writer: asyncio.StreamWriter) -> Peer | None:
    tls = writer.get_extra_info("ssl_object")
    return read_peer(tls) if tls.getpeercert() else None
