"""The controller's side of every node's connection: admit, listen, answer fetches, notice loss."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from cluster import wire
from cluster.authority import Authority
from cluster.channel import Channel
from cluster.errors import LinkError, LinkLost, ModelError
from cluster.identity import NodeId
from cluster.joining import admit_newcomer
from cluster.membership import HEARTBEAT_MS, PATIENCE_MS, Membership
from cluster.plan import Member

log = structlog.get_logger(__name__)

HELLO_TIMEOUT_S = 10.0
ANSWERS_MAX = 4096
FETCHES_MAX = 4
_LOOK_AGAIN_MS = 100
_TWICE = "a machine with this certificate is in the cluster already; join with a data folder of your own"
# What a node may say at once: it has no files to send and its machine is described in a few words.
_NODE_BYTES_MAX = 2**20

ReadPart = Callable[[str, int], tuple[bytes, int]]
"""(sha256, offset) -> (content, size of the whole). Raises ModelError."""


@dataclass(slots=True)
class _Connection:
    channel: Channel
    beats: int = 0
    fetches: set[asyncio.Task[None]] = field(default_factory=set)


class Roster:
    """Every machine that is connected. What they answer, and that one has come, waits in `answers`.

    A node that is lost answers Failed by our own hand, so that whoever waits for it hears of it.
    """

    def __init__(self, authority: Authority, read_part: ReadPart) -> None:
        self._authority = authority
        self._read_part = read_part
        self._connections: dict[NodeId, _Connection] = {}
        self.membership = Membership(time.monotonic)
        self.answers: asyncio.Queue[tuple[Member, wire.Message]] = asyncio.Queue(ANSWERS_MAX)

    async def serve(self, channel: Channel) -> None:
        """One connection to the controller's port, from a newcomer or a node, until it ends."""
        if channel.peer is None:
            await admit_newcomer(channel, self._authority)
            return
        channel.message_bytes_max = _NODE_BYTES_MAX
        hello, _ = await channel.receive(HELLO_TIMEOUT_S)
        if channel.peer.role != "node" or not isinstance(hello, wire.Hello):
            await channel.send(wire.Refused("expected a node's hello"))
            return
        node_id = channel.peer.node_id
        if await self._still_beats(node_id):
            log.warning("node refused", node=hello.name, node_id=node_id, peer=channel.address, reason=_TWICE)
            await channel.send(wire.Refused(_TWICE))
            return
        await self.drop(node_id, "it connected anew")
        connection = self._connections[node_id] = _Connection(channel)
        member = Member(node_id, hello.name, hello.machine)
        reason = "it was dropped"
        try:
            # The node waits longer for us than we for it: it is we who say who is in the cluster.
            await channel.send(wire.Welcome(HEARTBEAT_MS, 3 * PATIENCE_MS))
            self.membership.admit(member)
            log.info("node present", node=hello.name, node_id=node_id, peer=channel.address)
            await self.answers.put((member, hello))
            while True:
                message, _ = await channel.receive()
                await self._handle(member, connection, message)
        except LinkError as error:
            reason = str(error)
            raise
        finally:
            for task in connection.fetches:
                task.cancel()
            if self._connections.get(node_id) is connection:
                await self.drop(node_id, reason)

    def is_present(self, node_id: NodeId) -> bool:
        """Whether this machine is connected."""
        return node_id in self._connections

    async def _still_beats(self, node_id: NodeId) -> bool:
        """Whether the connection that this identity has is alive; one whose machine vanished falls silent."""
        before = self._connections.get(node_id)
        beats = before.beats if before else 0
        waited_ms = 0
        while before and self._connections.get(node_id) is before and waited_ms < PATIENCE_MS:
            if before.beats > beats:
                return True
            await asyncio.sleep(_LOOK_AGAIN_MS / 1000)
            waited_ms += _LOOK_AGAIN_MS
        return False

    async def send(self, node_id: NodeId, message: wire.Message) -> None:
        """Raises LinkLost."""
        connection = self._connections.get(node_id)
        if connection is None:
            raise LinkLost(f"node {node_id} is not connected")
        await connection.channel.send(message)

    async def drop(self, node_id: NodeId, reason: str) -> None:
        """Forget a node and cut its connection."""
        connection = self._connections.pop(node_id, None)
        member = self.membership.forget(node_id)
        if connection:
            connection.channel.writer.transport.abort()
        if member:
            log.warning("node lost", node=member.name, node_id=node_id, reason=reason)
            await self.answers.put(
                (member, wire.Failed(wire.ANY_EPOCH, "node", f"{member.name} is gone: {reason}"))
            )

    async def watch(self) -> None:
        """Drop members that have gone silent. Runs for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            for member in self.membership.silent():
                await self.drop(member.node_id, f"silent for {PATIENCE_MS} ms")

    async def _handle(self, member: Member, connection: _Connection, message: wire.Message) -> None:
        match message:
            case wire.Heartbeat(memory_usable_bytes):
                connection.beats += 1
                self.membership.beat(member.node_id, memory_usable_bytes)
                await connection.channel.send(wire.Tick())
            case wire.Fetch(sha256, offset) if len(connection.fetches) < FETCHES_MAX:
                task = asyncio.create_task(self._send_part(connection.channel, sha256, offset))
                connection.fetches.add(task)
                task.add_done_callback(connection.fetches.discard)
            case (
                wire.Prepared()
                | wire.Ready()
                | wire.Connected()
                | wire.RingClosed()
                | wire.Drained()
                | wire.Failed()
            ):
                await self.answers.put((member, message))
            case _:
                log.warning("message ignored", node=member.name, kind=type(message).__name__)

    async def _send_part(self, channel: Channel, sha256: str, offset: int) -> None:
        try:
            content, total_bytes = await asyncio.to_thread(self._read_part, sha256, offset)
            await channel.send(wire.Part(sha256, offset, total_bytes), content)
        except (ModelError, LinkLost, OSError) as error:
            log.warning("fetch failed", peer=channel.address, reason=str(error))
