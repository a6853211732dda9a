"""The agent on each machine: join, hold on to the controller, run stage and head as children, report."""

import asyncio
import contextlib
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
from cluster.store import ModelCopy

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
        self._parts: asyncio.Queue[tuple[wire.Part, bytes]] = asyncio.Queue(16)
        self._fetching = asyncio.Lock()

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
        while True:
            try:
                channel = await dial(
                    self._options.controller.host,
                    self._options.controller.port,
                    self._identity.client_context(),
                )
                failures = 0
                await self._serve_controller(channel)
            except LinkLost as error:
                pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
                failures += 1
                log.warning("controller lost", reason=str(error), again_in_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _serve_controller(self, channel: Channel) -> None:
        """One connection from hello to its loss."""
        beating: asyncio.Task[None] | None = None
        try:
            await self._start_stage(channel.writer.get_extra_info("sockname")[0])
            machine = await asyncio.wait_for(asyncio.shield(self._machine), START_TIMEOUT_S)
            await channel.send(wire.Hello(self._options.name, machine))
            welcome, _ = await channel.receive(WELCOME_TIMEOUT_S)
            if isinstance(welcome, wire.Refused):
                raise PeerRejected(welcome.reason)
            if not isinstance(welcome, wire.Welcome):
                raise FrameInvalid("expected a welcome from the controller")
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
                if self._fetching.locked():  # Otherwise the rest of a fetch that was given up.
                    await self._parts.put((message, payload))
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
            if role not in self._children:
                await self._start_child(role, *self._program(role))
            await self._children[role].send(replace(order, source=source))
        except (ClusterError, OSError) as error:
            log.error("assignment failed", role=role, epoch=order.epoch, reason=str(error))
            await self._report(wire.Failed(order.epoch, role, str(error)))

    async def _fetch(self, order: wire.AssignStage | wire.AssignHead) -> str:
        """Get what this node lacks of the model; returns the folder of its copy."""
        manifest = order.manifest
        card = read_card(manifest.config)
        names = stage_tensor_names(card, order.spec) if isinstance(order, wire.AssignStage) else []
        async with self._fetching:
            while not self._parts.empty():
                self._parts.get_nowait()
            copy = ModelCopy(self._folder / "models", manifest)
            for sha256 in copy.missing(names):
                await self._fetch_one(copy, sha256)
        return str(copy.folder)

    async def _fetch_one(self, copy: ModelCopy, sha256: str) -> None:
        await self._report(wire.Fetch(sha256, copy.offset(sha256)))
        complete = False
        while not complete:
            try:
                part, content = await asyncio.wait_for(self._parts.get(), PART_TIMEOUT_S)
            except TimeoutError:
                raise LinkLost(
                    f"the controller sent nothing of {sha256[:12]} for {PART_TIMEOUT_S:.0f} s"
                ) from None
            if part.sha256 == sha256:
                complete = await asyncio.to_thread(copy.append, sha256, content, part.total_bytes)

    # Children

    async def _start_stage(self, host: str) -> None:
        """The stage process listens on the address that this machine reaches the controller from."""
        if "stage" in self._children and host == self._host:
            return
        for child in self._children.values():
            await child.stop()
        self._children.clear()
        self._host = host
        self._machine = asyncio.get_running_loop().create_future()
        await self._start_child("stage", *self._program("stage"))

    def _program(self, role: Role) -> tuple[str, list[str]]:
        if role == "head":
            return "cluster.head_process", []
        return "cluster.stage_process", [str(self._options.threads), str(self._options.share)]

    async def _start_child(self, role: Role, module: str, arguments: list[str]) -> None:
        async def handle(message: wire.Message) -> None:
            await self._from_child(message)

        async def ended(reason: str) -> None:
            await self._child_ended(role, reason)

        common = [str(self._identity.folder), self._options.name, self._host, self._options.log_style]
        child = Child(role, module, [*common, *arguments], handle, ended)
        self._children[role] = child
        await child.start()

    async def _from_child(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._empty_stage_bytes = self._children["stage"].memory_bytes
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
