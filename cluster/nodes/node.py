"""The agent on each machine: it joins, stays connected to the controller, runs its orders and reports."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from cluster import wire
from cluster.errors import FrameInvalid, LinkLost, OwnRemoval, PeerRejected, WrongPeer
from cluster.joining.enrolment import join
from cluster.joining.handshake import PROGRAM
from cluster.joining.whereabouts import ControllerSearch
from cluster.models.store import PART_BYTES
from cluster.net.channel import Channel, dial
from cluster.nodes.child_processes import ChildProcesses
from cluster.nodes.file_fetcher import ControllerSource, Fetcher
from cluster.nodes.file_server import FileServer
from cluster.nodes.link_probe import LinkProbe
from cluster.nodes.node_options import NodeOptions
from cluster.trust import renewal
from cluster.trust.addresses import Target
from cluster.trust.authority import fingerprint, read_token
from cluster.trust.identity import AUTHORITY_FILE, Identity

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT_S = 10.0
RENEWAL_TIMEOUT_S = 30.0
# The interval of reports on the machine's condition: battery, radio, heat.
CONDITION_EVERY_S = 15.0
PAUSES_S = (0.5, 1.0, 2.0, 5.0)


class Agent:
    """Lives as long as the machine takes part: one controller connection at a time, children that outlive it."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._folder = Path(options.folder)
        self._identity = Identity(self._folder / "identity")
        self._channel: Channel | None = None
        self._host = ""
        self._controller_search = ControllerSearch(
            options.controller, self._folder / "controller.json", options.discovery
        )
        self._controller_source = ControllerSource(self._report)
        fetcher = Fetcher(self._folder / "models", self._identity, self._controller_source)
        self._children = ChildProcesses(options, self._identity, fetcher, self._report)
        self._file_server = FileServer(self._folder / "models", self._identity)
        self._files_port = 0
        self._link_probe = LinkProbe(self._identity)
        self._renewed: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Run until cancelled. Raise ClusterError; raise PeerRejected if this machine is not admitted."""
        await self._ensure_identity()
        try:
            await self._stay_connected()
        finally:
            await self._file_server.close()
            self._link_probe.close()
            await self._children.stop()

    async def _ensure_identity(self) -> None:
        """Join, unless this machine already has a valid certificate. Raise PeerRejected or LinkLost."""
        identity = self._identity
        if identity.exists and not renewal.has_ended(identity):
            return
        if not self._options.token:
            why = "its certificate has expired" if identity.exists else "it has not joined a cluster yet"
            raise PeerRejected(
                f"this machine needs a join token, because {why}. Create one on the gateway with "
                "`millrace token create`, and use --token"
            )
        await self._join()

    async def _join(self) -> None:
        """Join with the token. Raise PeerRejected or LinkLost."""
        identity, token = self._identity, self._options.token
        pinned, _ = read_token(token)
        await self._controller_search.reach(
            pinned, lambda target: join(target, token, identity.folder, self._options.name)
        )

    async def _stay_connected(self) -> None:
        failures = 0
        pinned = fingerprint((self._identity.folder / AUTHORITY_FILE).read_text())

        def welcomed() -> None:
            nonlocal failures
            failures = 0

        while True:
            try:
                channel = await self._controller_search.reach(pinned, self._dial_controller)
                await self._serve_controller(channel, welcomed)
            except (LinkLost, FrameInvalid, OSError) as error:
                # A peer that sends invalid frames will not recover in half a second.
                patience = len(PAUSES_S) if isinstance(error, FrameInvalid) else failures
                pause_s = PAUSES_S[min(patience, len(PAUSES_S) - 1)]
                failures += 1
                log.warning("controller lost", reason=str(error), again_in_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _settle(self, host: str) -> None:
        """Make everything listen on the address from which this machine reaches the controller."""
        await self._children.start(host)
        if host != self._host:
            self._host = host
            self._link_probe.open(host)
            if not self._options.shares_files:
                self._files_port = await self._file_server.open(host)

    async def _dial_controller(self, target: Target) -> Channel:
        if renewal.has_ended(self._identity):
            raise PeerRejected("this machine's certificate has expired. Join again with a new token.")
        channel = await dial(target.host, target.port, self._identity.client_context())
        if channel.peer is None or channel.peer.role != "gateway":
            await channel.close()
            raise WrongPeer(f"{channel.address} is not a controller of this cluster")
        channel.payload_bytes_max = PART_BYTES
        channel.message_bytes_max = wire.ORDER_BYTES_MAX
        return channel

    async def _serve_controller(self, channel: Channel, welcomed: Callable[[], None]) -> None:
        """Serve one connection from hello to its loss. Raise LinkLost, PeerRejected or ClusterError."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._settle(channel.writer.get_extra_info("sockname")[0])
            machine = await self._children.probed_machine()
            await channel.send(
                wire.Hello(
                    name=self._options.name,
                    machine=machine,
                    program=PROGRAM,
                    protocol=wire.PROTOCOL_VERSION,
                    torch=self._children.torch,
                    files_port=self._files_port,
                )
            )
            welcome, _ = await channel.receive(WELCOME_TIMEOUT_S)
            if isinstance(welcome, wire.Refused):
                if welcome.removed and self._options.token:
                    await self._join()
                    raise LinkLost("this machine was removed and has joined again")
                raise _refusal(welcome)
            if not isinstance(welcome, wire.Welcome):
                raise FrameInvalid("expected a welcome from the controller")
            welcomed()
            self._channel = channel
            await channel.send(self._link_probe.report())
            tasks = [
                asyncio.create_task(self._beat(channel, welcome.heartbeat_ms / 1000), name="heartbeat"),
                asyncio.create_task(renewal.keep_fresh(self._identity, self._renew), name="certificate renewal"),
            ]
            while True:
                message, payload = await channel.receive(welcome.patience_ms / 1000)
                await self._handle(message, payload)
        finally:
            self._channel = None
            for task in tasks:
                task.cancel()
            await channel.close()

    async def _beat(self, channel: Channel, interval_s: float) -> None:
        try:
            reported_s = time.monotonic()
            while True:
                await channel.send(self._children.heartbeat())
                if time.monotonic() - reported_s >= CONDITION_EVERY_S:
                    reported_s = time.monotonic()
                    await channel.send(self._link_probe.report())
                await asyncio.sleep(interval_s)
        except LinkLost:
            channel.writer.transport.abort()

    async def _handle(self, message: wire.Message, payload: bytes) -> None:
        match message:
            case wire.Part() | wire.NoPart():
                self._controller_source.deliver(message, payload)
            case wire.Renewed(certificate_pem):
                self._keep_certificate(certificate_pem)
            case wire.Removed():
                await self._keep_out(message)
            case wire.Refused():
                raise _refusal(message)
            case wire.MeasureLinks():
                self._link_probe.begin(message, self._report)
            case _:
                await self._children.obey(message)

    def _keep_certificate(self, certificate_pem: str) -> None:
        """Store a renewed certificate. Raise PeerRejected if it is not valid for this machine."""
        try:
            renewal.keep(self._identity, certificate_pem)
        except OSError as error:  # For example, the disk is full. The agent requests it again later.
            log.error("certificate not saved", reason=str(error))
            return
        if self._renewed and not self._renewed.done():
            self._renewed.set_result(None)

    async def _renew(self) -> None:
        """Ask for a new certificate. Raise TimeoutError if the controller does not answer."""
        self._renewed = asyncio.get_running_loop().create_future()
        await self._report(wire.Renew(renewal.request_again(self._identity, self._options.name)))
        async with asyncio.timeout(RENEWAL_TIMEOUT_S):
            await self._renewed

    async def _keep_out(self, message: wire.Removed) -> None:
        """Store the list of removed machines, which is read for every new connection. End open ones now."""
        try:
            self._identity.keep_removed(message.node_ids)
        except OSError as error:  # The controller sends the list again on every connect.
            log.error("removed machines not saved", reason=str(error))
        self._file_server.disconnect(frozenset(message.node_ids))
        await self._children.keep_out(message)

    async def _report(self, message: wire.Message) -> None:
        """Send a message to the controller.

        Without a connection, drop the message: the controller will send its orders again.
        """
        if self._channel:
            with contextlib.suppress(LinkLost):
                await self._channel.send(message)


def _refusal(refused: wire.Refused) -> PeerRejected:
    return OwnRemoval(refused.reason) if refused.removed else PeerRejected(refused.reason)
