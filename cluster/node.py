"""The agent on each machine: join, hold on to the controller, run stage and head as children, report."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from cluster import wire
from cluster.channel import Channel, dial
from cluster.checkpoint import stage_tensor_names
from cluster.child import Child
from cluster.errors import ClusterError, FrameInvalid, LinkLost, PeerRejected
from cluster.identity import Identity
from cluster.joining import Target, join
from cluster.model_card import read_card
from cluster.probe import Machine, usable_memory_bytes
from cluster.store import PART_BYTES, ModelCopy

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT_S = 10.0
PART_TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0
RESTART_PAUSE_S = 1.0
PAUSES_S = (0.5, 1.0, 2.0, 5.0)

Role = Literal["stage", "head"]


class NodeOptions(Struct, frozen=True, kw_only=True):
    """How to run a node. `token` is needed once; afterwards the certificate in `folder` speaks for it.

    `share` is this node's part of the machine's memory when several nodes run on one. `shares_files` says
    that the controller's paths are valid here, so that nothing need be fetched.
    """

    name: str
    folder: str
    controller: Target
    token: str = ""
    threads: int = 1
    share: float = 1.0
    shares_files: bool = False
    log_style: str = "json:info"


class Agent:
    """Lives as long as the machine takes part: one controller connection at a time, children that outlive it."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._folder = Path(options.folder)
        self._identity = Identity(self._folder / "identity")
        self._channel: Channel | None = None
        self._host = ""
        self._children: dict[Role, Child] = {}
        self._machine: asyncio.Future[Machine] = asyncio.get_running_loop().create_future()
        self._empty_stage_bytes = 0
        self._epoch = 0
        self._assigning: dict[Role, asyncio.Task[None]] = {}
        self._parts: asyncio.Queue[tuple[wire.Part, bytes]] = asyncio.Queue(4)
        self._fetching = asyncio.Lock()
        self._starting = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled. Raises PeerRejected when this machine is not let in."""
        options = self._options
        if not self._identity.exists:
            if not options.token:
                raise PeerRejected("this machine has not joined a cluster yet: pass --token")
            await join(options.controller, options.token, self._identity.folder, options.name)
        try:
            await self._stay_connected()
        finally:
            for task in self._assigning.values():
                task.cancel()
            await asyncio.gather(*(child.stop() for child in self._children.values()))

    async def _stay_connected(self) -> None:
        failures = 0

        def welcomed() -> None:
            nonlocal failures
            failures = 0

        while True:
            try:
                channel = await dial(
                    self._options.controller.host,
                    self._options.controller.port,
                    self._identity.client_context(),
                )
                if channel.peer is None or channel.peer.role != "gateway":
                    await channel.close()
                    raise PeerRejected(f"{channel.address} is no controller of this cluster")
                channel.payload_bytes_max = PART_BYTES
                await self._serve_controller(channel, welcomed)
            except LinkLost as error:
                pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
                failures += 1
                log.warning("controller lost", reason=str(error), again_in_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _serve_controller(self, channel: Channel, welcomed: Callable[[], None]) -> None:
        """One connection from hello to its loss. Raises LinkLost, PeerRejected, ClusterError."""
        beating: asyncio.Task[None] | None = None
        try:
            await self._start_stage(channel.writer.get_extra_info("sockname")[0])
            machine = await self._probed_machine()
            await channel.send(wire.Hello(self._options.name, machine))
            welcome, _ = await channel.receive(WELCOME_TIMEOUT_S)
            if isinstance(welcome, wire.Refused):
                raise PeerRejected(welcome.reason)
            if not isinstance(welcome, wire.Welcome):
                raise FrameInvalid("expected a welcome from the controller")
            welcomed()
            self._channel = channel
            beating = asyncio.create_task(self._beat(channel, welcome.heartbeat_ms / 1000))
            while True:
                message, payload = await channel.receive(welcome.patience_ms / 1000)
                await self._handle(message, payload)
        finally:
            self._channel = None
            if beating:
                beating.cancel()
            await channel.close()

    async def _probed_machine(self) -> Machine:
        try:
            return await asyncio.wait_for(asyncio.shield(self._machine), START_TIMEOUT_S)
        except TimeoutError:
            raise ClusterError(f"the stage process did not start within {START_TIMEOUT_S:.0f} s") from None

    async def _beat(self, channel: Channel, interval_s: float) -> None:
        try:
            while True:
                await channel.send(wire.Heartbeat(self._memory_usable_bytes()))
                await asyncio.sleep(interval_s)
        except LinkLost:
            channel.writer.transport.abort()

    def _memory_usable_bytes(self) -> int:
        """What a new assignment could fill: the memory that the present one holds comes free first."""
        stage = self._children.get("stage")
        held_bytes = max(0, stage.memory_bytes - self._empty_stage_bytes) if stage else 0
        return usable_memory_bytes(self._options.share) + held_bytes

    async def _handle(self, message: wire.Message, payload: bytes) -> None:
        match message:
            case wire.Part():
                # One part is asked for at a time; a full queue means that nobody waits for this one any more.
                with contextlib.suppress(asyncio.QueueFull):
                    self._parts.put_nowait((message, payload))
            case wire.AssignStage():
                self._assign("stage", message)
            case wire.AssignHead():
                self._assign("head", message)
            case wire.Connect(role=("stage" | "head") as role):
                await self._pass_on(role, message)
            case wire.Drain():
                await self._pass_on("head", message)
            case wire.Dismiss():
                for role in list(self._children):
                    await self._pass_on(role, message)
            case wire.Refused(reason):
                raise PeerRejected(reason)
            case _:
                pass

    # Assignments

    def _assign(self, role: Role, order: wire.AssignStage | wire.AssignHead) -> None:
        self._epoch = order.epoch
        if earlier := self._assigning.get(role):
            earlier.cancel()
        self._assigning[role] = asyncio.create_task(self._prepare(role, order), name=f"assign {role}")

    async def _prepare(self, role: Role, order: wire.AssignStage | wire.AssignHead) -> None:
        """Bring the files here, then hand the order to the child that carries it out."""
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            # Shielded: a child that a newer order interrupts half-way through its start would never be used.
            child = await asyncio.shield(self._ensure_child(role))
            await child.send(replace(order, source=source))
        except Exception as error:
            expected = isinstance(error, ClusterError | OSError)
            log.error("assignment failed", role=role, epoch=order.epoch, reason=str(error), exc_info=not expected)
            await self._report(wire.Failed(order.epoch, role, f"{self._options.name}: {error}"))

    async def _fetch(self, order: wire.AssignStage | wire.AssignHead) -> str:
        """Get what this node lacks of the model; returns the folder of its copy."""
        manifest = order.manifest
        card = read_card(manifest.config)
        names = stage_tensor_names(card, order.spec) if isinstance(order, wire.AssignStage) else []
        async with self._fetching:
            copy = ModelCopy(self._folder / "models", manifest)
            for sha256 in copy.missing(names):
                await self._fetch_one(copy, sha256)
        return str(copy.folder)

    async def _fetch_one(self, copy: ModelCopy, sha256: str) -> None:
        complete = False
        while not complete:
            offset = copy.offset(sha256)
            await self._report(wire.Fetch(sha256, offset))
            part, content = await self._next_part(sha256, offset)
            # Shielded: half a part in the file would be counted as a whole one by whoever goes on.
            complete = await asyncio.shield(asyncio.to_thread(copy.append, sha256, content, part.total_bytes))

    async def _next_part(self, sha256: str, offset: int) -> tuple[wire.Part, bytes]:
        """The part that was asked for; what is left of a fetch that was given up is passed over."""
        try:
            async with asyncio.timeout(PART_TIMEOUT_S):
                while True:
                    part, content = await self._parts.get()
                    if part.sha256 == sha256 and part.offset == offset and (content or not part.total_bytes):
                        return part, content
        except TimeoutError:
            silence = f"the controller sent nothing of {sha256[:12]} for {PART_TIMEOUT_S:.0f} s"
            raise LinkLost(silence) from None

    # Children

    async def _start_stage(self, host: str) -> None:
        """The stage process listens on the address that this machine reaches the controller from."""
        if host != self._host:
            for child in self._children.values():
                await child.stop()
            self._children.clear()
            self._host = host
        await self._ensure_child("stage")

    def _program(self, role: Role) -> tuple[str, list[str]]:
        if role == "head":
            return "cluster.head_process", []
        return "cluster.stage_process", [str(self._options.threads), str(self._options.share)]

    async def _ensure_child(self, role: Role) -> Child:
        async with self._starting:
            if role not in self._children:
                if role == "stage":
                    self._machine = asyncio.get_running_loop().create_future()
                self._children[role] = await self._start_child(role, *self._program(role))
            return self._children[role]

    async def _start_child(self, role: Role, module: str, arguments: list[str]) -> Child:
        async def handle(message: wire.Message) -> None:
            await self._from_child(message)

        async def ended(reason: str) -> None:
            await self._child_ended(role, reason)

        common = [str(self._identity.folder), self._options.name, self._host, self._options.log_style]
        child = Child(role, module, [*common, *arguments], handle, ended)
        await child.start()
        return child

    async def _from_child(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            stage = self._children.get("stage")
            self._empty_stage_bytes = stage.memory_bytes if stage else 0
            if not self._machine.done():
                self._machine.set_result(message.machine)
        else:
            await self._report(message)

    async def _child_ended(self, role: Role, reason: str) -> None:
        self._children.pop(role, None)
        await self._report(wire.Failed(self._epoch, role, reason))
        if role == "stage":
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._start_stage(self._host)

    async def _pass_on(self, role: Role, message: wire.Message) -> None:
        """A child that is gone has been reported already; the order for it is moot."""
        if child := self._children.get(role):
            with contextlib.suppress(LinkLost):
                await child.send(message)

    async def _report(self, message: wire.Message) -> None:
        """To the controller; without one the message is moot, since it will assign anew."""
        if self._channel:
            with contextlib.suppress(LinkLost):
                await self._channel.send(message)
