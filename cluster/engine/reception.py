"""An actor's side of its callers: their connections, their requests and the answers to them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from cluster import wire
from cluster.embedding import EmbedRequest
from cluster.engine.tickets import Cancelled, places_for, rejected
from cluster.errors import ClusterBusy, ClusterUnavailable, GenerationError, LinkLost, PeerRejected
from cluster.generation import Done, GenerateRequest
from cluster.net.channel import Channel

log = structlog.get_logger(__name__)

# A caller that lets this many messages pile up has stopped reading.
OUTGOING_MAX = 20_000


class TellCaller(Protocol):
    """Sends a message and its payload to a caller. Any thread may call it."""

    def __call__(self, message: wire.Message, payload: bytes = b"") -> None: ...


class Actor(Protocol):
    """A worker with one thread: `run` works until `stop`. Any thread may call the other methods."""

    # The port where callers connect; known before the first order comes.
    client_port: int
    # The deployment that the last order named; empty before the first one.
    deployment: str

    @property
    def vitals(self) -> wire.Vitals: ...

    async def prepare(self, request: GenerateRequest | EmbedRequest, tell: TellCaller) -> object:
        """Return the request as `deliver` takes it. Raise GenerationError if it cannot be served."""

    def deliver(self, item: Any) -> None:
        """Put an order, a prepared request or a Cancelled into the inbox."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Caller:
    """One connection. Messages from the actor's thread wait in `outgoing` for the writer task."""

    channel: Channel
    loop: asyncio.AbstractEventLoop
    outgoing: asyncio.Queue[tuple[wire.Message, bytes]] = field(
        default_factory=lambda: asyncio.Queue(OUTGOING_MAX)
    )
    requests: set[str] = field(default_factory=set)
    preparing: set[asyncio.Task[None]] = field(default_factory=set)

    def tell(self, message: wire.Message, payload: bytes = b"") -> None:
        """Queue a message for the caller. The actor's thread calls this."""
        self.loop.call_soon_threadsafe(self._queue, message, payload)

    def _queue(self, message: wire.Message, payload: bytes) -> None:
        if isinstance(message, wire.Rejected | wire.Embedded) or (
            isinstance(message, wire.Events) and message.events and isinstance(message.events[-1], Done)
        ):
            self.requests.discard(message.request_id)
        try:
            self.outgoing.put_nowait((message, payload))
        except asyncio.QueueFull:
            log.warning("caller reads too slowly", peer=self.channel.address)
            self.channel.writer.transport.abort()


class Reception:
    """Serves every caller's connection for one actor."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def serve(self, channel: Channel) -> None:
        """Serve one caller until it hangs up, then cancel what it still has running.

        Raise PeerRejected if it is no gateway.
        """
        if channel.peer is None or channel.peer.role != "gateway":
            raise PeerRejected("only gateways may send requests")
        caller = _Caller(channel, asyncio.get_running_loop())
        writing = asyncio.create_task(_write(caller))
        try:
            while True:
                message, _ = await channel.receive()
                match message:
                    case wire.Generate(request, deployment) | wire.Embed(request, deployment):
                        if deployment == self._actor.deployment:
                            self._accept(caller, request)
                        else:
                            caller.tell(rejected(request.id, ClusterUnavailable("another model answers here now")))
                    case wire.Cancel(request_id) if request_id in caller.requests:
                        caller.requests.discard(request_id)
                        self._actor.deliver(Cancelled(request_id))
                    case _:
                        pass
        finally:
            for task in (writing, *caller.preparing):
                task.cancel()
            for request_id in caller.requests:
                self._actor.deliver(Cancelled(request_id))

    def _accept(self, caller: _Caller, request: GenerateRequest | EmbedRequest) -> None:
        """Prepare each request in its own task, so that a long prompt delays no other request."""
        if len(caller.preparing) >= places_for(request):
            caller.tell(rejected(request.id, ClusterBusy("too many requests arrived at once. Try again shortly.")))
            return
        caller.requests.add(request.id)
        task = asyncio.create_task(self._admit(caller, request), name=f"prepare {request.id}")
        caller.preparing.add(task)
        task.add_done_callback(caller.preparing.discard)

    async def _admit(self, caller: _Caller, request: GenerateRequest | EmbedRequest) -> None:
        try:
            prepared = await self._actor.prepare(request, caller.tell)
        except GenerationError as error:
            caller.tell(rejected(request.id, error))
        except Exception:  # the edge of one request: the connection carries others, too
            log.exception("request cannot be prepared", request_id=request.id)
            caller.tell(rejected(request.id, GenerationError("the request cannot be prepared")))
        else:
            if request.id in caller.requests:  # Otherwise it was cancelled meanwhile.
                self._actor.deliver(prepared)


async def _write(caller: _Caller) -> None:
    try:
        while True:
            await caller.channel.send(*await caller.outgoing.get())
    except LinkLost as error:
        log.info("caller disconnected", peer=caller.channel.address, reason=str(error))
    finally:  # However writing ended, a connection that carries nothing back is useless.
        caller.channel.writer.transport.abort()
