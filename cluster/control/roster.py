"""The controller's side of every node's connection: admit it, read it, answer fetches, notice its loss."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.control.links import LinkSurvey
from cluster.control.membership import HEARTBEAT_MS, PATIENCE_MS, Membership
from cluster.control.parts import Parts, ReadPart
from cluster.control.subscription import Subscription
from cluster.errors import LinkError, LinkLost, MachineRemoved, PeerRejected
from cluster.events import Chronicle
from cluster.joining.enrolment import admit_newcomer
from cluster.joining.handshake import check_hello, check_memory
from cluster.net.channel import Channel
from cluster.nodes.absences import Absences
from cluster.nodes.sources import nearest
from cluster.plans.plan import Member
from cluster.trust.authority import Authority
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineBook

log = structlog.get_logger(__name__)

HELLO_TIMEOUT_S = 10.0
# The time that a node waits for a silent controller. Its pipeline serves on meanwhile.
NODE_PATIENCE_MS = 10_000
# Eight times the agreed rate is too much: a clock or a program has a fault.
BEATS_WINDOW_S = 5.0
BEATS_MAX = int(8 * BEATS_WINDOW_S * 1000 / HEARTBEAT_MS)
RENEWALS_EVERY_S = 1.0
FAREWELL_S = 1.0
_LOOK_AGAIN_MS = 100
_TWICE = "a machine with this certificate is already in the cluster. Join with a separate data directory."
# The limit of a node's message: nodes send no files, and the description of a machine is short.
_NODE_BYTES_MAX = 2**20

_WITH_SOURCES = (wire.Prepare, wire.Shelve, wire.AssignStage, wire.AssignCoordinator, wire.AssignEmbedder)


@dataclass(slots=True)
class _Connection:
    channel: Channel
    parts: Parts
    files: wire.Address | None = None
    beats: int = 0
    window_began_s: float = 0.0
    window_beats: int = 0
    renewed_s: float = -RENEWALS_EVERY_S
    answering: asyncio.Task[None] | None = None
    # Deployments that it was told to unload.
    unloaded: set[str] = field(default_factory=set)


class Roster:
    """Every connected machine. Its messages about a deployment go to the deployment's subscription.

    The news that a machine has joined goes to all. For a lost node the roster itself adds Failed, so that waiting
    tasks learn of the loss.
    """

    def __init__(self, authority: Authority, read_part: ReadPart) -> None:
        self._authority = authority
        self._read_part = read_part
        self._connections: dict[NodeId, _Connection] = {}
        self.membership = Membership(time.monotonic)
        self.links = LinkSurvey(time.monotonic)
        self._subscriptions: dict[str, Subscription] = {}
        self.chronicle = Chronicle()
        self.absences = Absences(self.chronicle)

    async def serve(self, channel: Channel) -> None:
        """Serve one connection to the controller's port, from a newcomer or a node, until it ends."""
        if channel.peer is None:
            await admit_newcomer(channel, self._authority)
            return
        channel.message_bytes_max = _NODE_BYTES_MAX
        hello, _ = await channel.receive(HELLO_TIMEOUT_S)
        if channel.peer.role != "node" or not isinstance(hello, wire.Hello):
            await channel.send(wire.Refused("expected a node's hello"))
            return
        check_hello(hello)
        node_id = channel.peer.node_id
        if await self._still_beats(node_id):
            log.warning("node refused", node=hello.name, node_id=node_id, peer=channel.address, reason=_TWICE)
            await channel.send(wire.Refused(_TWICE))
            return
        await self.drop(node_id, "it connected again")
        connection = _Connection(channel, Parts(channel, self._read_part), _files_address(channel, hello))
        self._connections[node_id] = connection
        with contextlib.suppress(OSError):  # On a full disk, the next change of the book writes it.
            self._authority.note(node_id, hello.name)
        reason = "it was dropped"
        try:
            # A node waits longer for the controller than the other way round: the controller decides who is in the
            # cluster.
            await channel.send(wire.Welcome(HEARTBEAT_MS, NODE_PATIENCE_MS))
            await channel.send(wire.Removed(sorted(self._authority.machines.removed)))
            # Read after the last wait: it may have been renamed meanwhile.
            called = self.machines.called(node_id, hello.name)
            member = Member(node_id, called, hello.machine)
            self.membership.admit(member)
            self.absences.end(hello.name)
            log.info("node present", node=called, node_id=node_id, peer=channel.address)
            self.chronicle.note("joined", f"{called} joined")
            self._tell(member, hello)
            while True:
                message, _ = await channel.receive()
                # Use its current name.
                member = self.membership.find(node_id) or member
                await self._handle(member, connection, message)
        except LinkError as error:
            reason = str(error)
            raise
        finally:
            connection.parts.stop()
            if connection.answering:
                connection.answering.cancel()
            if self._connections.get(node_id) is connection:
                await self._forget(node_id, reason)  # The server closes the channel and sends the reason.

    def subscribe(self, deployment: str) -> Subscription:
        """Return the deployment's subscription. Machines unload deployments without a subscription."""
        subscription = Subscription(
            deployment, self.machines, self.membership, self.links, self.chronicle, self.absences, self.send
        )
        self._subscriptions[deployment] = subscription
        return subscription

    def suspend(self, subscription: Subscription) -> None:
        """Send the deployment no more messages. Machines unload what they still hold of it."""
        self._subscriptions.pop(subscription.deployment, None)
        for connection in self._connections.values():
            connection.unloaded.discard(subscription.deployment)

    def resume(self, subscription: Subscription) -> None:
        """Send the deployment messages again."""
        subscription.answers.clear()
        self._subscriptions[subscription.deployment] = subscription

    @property
    def machines(self) -> MachineBook:
        """All machines that were admitted."""
        return self._authority.machines

    @property
    def draining(self) -> frozenset[NodeId]:
        """Machines that no plan may use. Their work moves elsewhere."""
        return self._authority.machines.draining

    async def drain(self, node_id: NodeId, *, draining: bool) -> None:
        """Move a machine's work away, or let it take part again. Raise OSError if that cannot be stored."""
        name = self._authority.machines.records[node_id].name
        self._authority.machines.drain(node_id, draining=draining)
        log.info("node drained" if draining else "node enabled again", node_id=node_id)
        if draining:
            self.chronicle.note("drained", f"{name} is drained: its work moves to other machines")
        else:
            self.chronicle.note("undrained", f"{name} is enabled again")
        for member in self.membership.present():
            if member.node_id == node_id:
                # With that many unread messages the task looks again anyway.
                with contextlib.suppress(PeerRejected):
                    self._tell(member, wire.Tick())

    def rename(self, node_id: NodeId, name: str) -> None:
        """Change a machine's name everywhere. Raise NameTaken or OSError."""
        before = self._authority.machines.records[node_id].name
        self._authority.machines.rename(node_id, name)
        self.membership.rename(node_id, name)
        log.info("machine renamed", node=name, node_id=node_id, before=before)
        self.chronicle.note("renamed", f"{before} was renamed to {name}")

    async def expel(self, node_id: NodeId) -> None:
        """Disconnect a machine that has just been removed. Tell it and all other machines."""
        if connection := self._connections.get(node_id):
            with contextlib.suppress(LinkLost, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await connection.channel.send(wire.Refused(str(MachineRemoved(node_id)), removed=True))
        await self.drop(node_id, "it was removed")
        everybody = wire.Removed(sorted(self._authority.machines.removed))
        # A machine that the message does not reach gets it when it connects again.
        await asyncio.gather(*(self.send(other, everybody) for other in self._connections), return_exceptions=True)

    async def _still_beats(self, node_id: NodeId) -> bool:
        """Tell whether this identity's connection is alive. The connection of a vanished machine falls silent."""
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
        """Send a message to a node. Raise LinkLost if it is not connected."""
        connection = self._connections.get(node_id)
        if connection is None:
            raise LinkLost(f"node {node_id} is not connected")
        if isinstance(message, _WITH_SOURCES):
            message = replace(message, sources=self._sources(node_id))
        await connection.channel.send(message)

    def _sources(self, node_id: NodeId) -> list[wire.Address]:
        """Return the nodes from which this one should fetch files, nearest first."""
        asker = self._connections[node_id].files
        if asker is None:
            return []
        holders = [connection.files for connection in self._connections.values() if connection.files]
        own_host = self._connections[node_id].channel.writer.get_extra_info("sockname")[0]
        return nearest(asker, holders, own_host, self.links.delay_s)

    async def drop(self, node_id: NodeId, reason: str) -> None:
        """Forget a node and close its connection."""
        if connection := self._connections.get(node_id):
            connection.channel.writer.transport.abort()
        await self._forget(node_id, reason)

    async def _forget(self, node_id: NodeId, reason: str) -> None:
        self._connections.pop(node_id, None)
        member = self.membership.forget(node_id)
        self.links.forget(node_id)
        if member:
            log.warning("node lost", node=member.name, node_id=node_id, reason=reason)
            self.chronicle.note("lost", f"{member.name} was lost: {reason}")
            loss = wire.Failed(wire.ANY_EPOCH, "node", f"{member.name} was lost: {reason}")
            for subscription in self._subscriptions.values():
                subscription.answers.put_loss(member, loss)

    async def watch(self) -> None:
        """Drop members that have gone silent. Run until cancelled."""
        clock = time.monotonic
        while True:
            slept_s = clock()
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            if (stalled_s := clock() - slept_s - HEARTBEAT_MS / 1000) > HEARTBEAT_MS / 1000:
                self.membership.forgive(stalled_s)
            for member in self.membership.silent():
                await self.drop(member.node_id, f"silent for {PATIENCE_MS} ms")
            for node_id, order in self.links.due():
                with contextlib.suppress(LinkLost):
                    await self.send(node_id, order)

    async def _handle(self, member: Member, connection: _Connection, message: wire.Message) -> None:
        match message:
            case wire.Heartbeat():
                _check_beat(member, connection, message)
                connection.beats += 1
                if self.membership.beat(member.node_id, message):
                    self._tell(member, wire.Tick())  # The planning task must look again.
                await self._unload_unknown(member, connection, message)
                self.links.take_clock(member.node_id, message.sent_at_s, time.time())
                self._answer_beat(connection)
            case wire.LinkReport():
                host = connection.channel.writer.get_extra_info("peername")[0]
                self.links.take_report(member.node_id, host, message)
            case wire.Renew(request_pem):
                await self._renew(member, connection, request_pem)
            case wire.Fetch():
                await connection.parts.answer(message)
            case wire.Ready():
                # Other nodes dial this node on its own host, whatever it reports, so that it cannot redirect them.
                host = connection.channel.writer.get_extra_info("peername")[0]
                self._tell(member, replace(message, host=host))
            case wire.Prepared() | wire.Shelved() | wire.Connected() | wire.PipelineClosed() | wire.Failed():
                self._tell(member, message)
            case _:
                log.warning("message ignored", node=member.name, kind=type(message).__name__)

    def _tell(self, member: Member, message: wire.Message) -> None:
        """Queue a machine's message for its deployment, or for all. Raise PeerRejected if too many are unread."""
        if not isinstance(message, wire.DeploymentMessage):
            for subscription in self._subscriptions.values():
                subscription.answers.put(member, message)
        elif known := self._subscriptions.get(message.deployment):
            known.answers.put(member, message)

    async def _unload_unknown(self, member: Member, connection: _Connection, beat: wire.Heartbeat) -> None:
        """Have the processes of deployments that are gone ended, once for each connection. Raise LinkLost."""
        gone = beat.processes.keys() - self._subscriptions.keys() - connection.unloaded - {""}
        for deployment in list(gone)[: wire.DEPLOYMENTS_MAX - len(connection.unloaded)]:
            connection.unloaded.add(deployment)
            log.info("deployment unloaded", node=member.name, deployment=deployment)
            await connection.channel.send(wire.Unload(wire.ANY_EPOCH, deployment=deployment))

    def _answer_beat(self, connection: _Connection) -> None:
        """Answer beside other traffic: a file part on a slow link must not delay the next heartbeat."""
        if connection.answering is None or connection.answering.done():
            connection.answering = asyncio.create_task(_tick(connection.channel))

    async def _renew(self, member: Member, connection: _Connection, request_pem: str) -> None:
        """Renew a certificate. Raise PeerRejected if this machine may not make the request."""
        if time.monotonic() - connection.renewed_s < RENEWALS_EVERY_S:
            raise PeerRejected(f"{member.name} asks for certificates too often")
        connection.renewed_s = time.monotonic()
        try:
            certificate_pem = self._authority.renew(member.node_id, request_pem)
        except OSError as error:  # The node asks again.
            log.error("certificate not renewed", node=member.name, reason=str(error))
            return
        await connection.channel.send(wire.Renewed(certificate_pem))
        log.info("certificate renewed", node=member.name, node_id=member.node_id)


def _files_address(channel: Channel, hello: wire.Hello) -> wire.Address | None:
    """Return the address of the node's file server, on its own host, so that it cannot send others elsewhere."""
    if channel.peer is None or not 0 < hello.files_port < 2**16:
        return None
    return wire.Address(channel.peer.node_id, channel.writer.get_extra_info("peername")[0], hello.files_port)


def _check_beat(member: Member, connection: _Connection, beat: wire.Heartbeat) -> None:
    """Raise PeerRejected for heartbeats that are impossible or far too frequent."""
    machine, now_s = member.machine, time.monotonic()
    # Used and free memory are counted at different moments. More than twice the total is impossible, less may be
    # true.
    # Processes share the pages of files, so the sum of what they hold says nothing.
    for amount_bytes in (beat.memory_free_bytes, *(report.held_bytes for report in beat.processes.values())):
        check_memory(member.name, amount_bytes, 2 * max(machine.memory_total_bytes, machine.device.memory_bytes))
    if now_s - connection.window_began_s > BEATS_WINDOW_S:
        connection.window_began_s, connection.window_beats = now_s, 0
    connection.window_beats += 1
    if connection.window_beats > BEATS_MAX:
        within_s = max(0.001, now_s - connection.window_began_s)
        raise PeerRejected(
            f"{member.name} sent {connection.window_beats} heartbeats in {within_s:.3f} s; "
            f"one every {HEARTBEAT_MS} ms is agreed"
        )


async def _tick(channel: Channel) -> None:
    with contextlib.suppress(LinkLost):
        await channel.send(wire.Tick())
