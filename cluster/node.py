"""The agent on each machine: join, hold on to the controller, run stage and head as children, report."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from cluster import wire
from cluster.channel import Channel, dial
from cluster.checkpoint import stage_tensor_names
from cluster.child import Child
from cluster.errors import ClusterError, FrameInvalid, LinkLost, ModelError, PeerRejected
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
        # By kind of work: the epoch that it is for, and its task.
        self._assigning: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._parts: asyncio.Queue[tuple[wire.Part, bytes]] = asyncio.Queue(4)
        self._fetching = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._is_stopping = False

    async def run(self) -> None:
        """Until cancelled. Raises ClusterError; PeerRejected when this machine is not let in."""
        options = self._options
        if not self._identity.exists:
            if not options.token:
                raise PeerRejected("this machine has not joined a cluster yet: pass --token")
            await join(options.controller, options.token, self._identity.folder, options.name)
        try:
            await self._stay_connected()
        finally:
            tasks = [task for _, task in self._assigning.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with self._starting:  # Whoever is being started is among the children then, and nobody follows.
                self._is_stopping = True
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
            case wire.Prepare():
                self._begin("files", message.epoch, self._get_files(message))
            case wire.AssignStage() | wire.AssignHead():
                self._epoch = message.epoch
                role: Role = "stage" if isinstance(message, wire.AssignStage) else "head"
                self._begin(role, message.epoch, self._prepare(role, message))
            case wire.Connect(role=("stage" | "head") as connecting):
                await self._pass_on(connecting, message)
            case wire.Drain():
                await self._pass_on("head", message)
            case wire.Dismiss():
                await self._dismiss(message)
            case wire.Refused(reason):
                raise PeerRejected(reason)
            case _:
                pass

    async def _dismiss(self, order: wire.Dismiss) -> None:
        for epoch, task in self._assigning.values():
            if epoch < order.epoch:
                task.cancel()
        for role in list(self._children):
            await self._pass_on(role, order)

    def _begin(self, what: str, epoch: int, work: Coroutine[None, None, None]) -> None:
        """One piece of work of each kind at a time: a newer order takes the place of an older one."""
        if what in self._assigning:
            self._assigning[what][1].cancel()
        self._assigning[what] = epoch, asyncio.create_task(work, name=f"{what} of epoch {epoch}")

    async def _get_files(self, order: wire.Prepare) -> None:
        """Bring the files here while another ring may still serve."""
        try:
            if not self._options.shares_files:
                await self._fetch(order)
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed("files", order.epoch, error)
        else:
            await self._report(wire.Prepared(order.epoch))

    async def _prepare(self, role: Role, order: wire.AssignStage | wire.AssignHead) -> None:
        """Bring the files here, then hand the order to the child that carries it out."""
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            # Shielded: a child that a newer order interrupts half-way through its start would never be used.
            child = await asyncio.shield(self._ensure_child(role))
            await child.send(replace(order, source=source))
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed(role, order.epoch, error)

    async def _failed(self, role: str, epoch: int, error: Exception) -> None:
        """The edge of an order's task: the controller must hear of whatever went wrong."""
        foreseen = isinstance(error, ClusterError | OSError)
        log.error("order failed", role=role, epoch=epoch, reason=str(error), exc_info=not foreseen)
        await self._report(wire.Failed(epoch, role, f"{self._options.name}: {error}"))

    async def _fetch(self, order: wire.Prepare | wire.AssignStage | wire.AssignHead) -> str:
        """Get what this node lacks of the model; returns the folder of its copy."""
        manifest = order.manifest
        card = read_card(manifest.config)
        names = stage_tensor_names(card, order.spec) if not isinstance(order, wire.AssignHead) else []
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
            if not content and offset < part.total_bytes:
                raise ModelError(f"the controller has no more than {offset} bytes of {sha256[:12]}")
            complete = await _append(copy, sha256, content, part.total_bytes)

    async def _next_part(self, sha256: str, offset: int) -> tuple[wire.Part, bytes]:
        """The part that was asked for; what is left of a fetch that was given up is passed over."""
        try:
            async with asyncio.timeout(PART_TIMEOUT_S):
                while True:
                    part, content = await self._parts.get()
                    if part.sha256 == sha256 and part.offset == offset:
                        return part, content
        except TimeoutError:
            silence = f"the controller sent nothing of {sha256[:12]} for {PART_TIMEOUT_S:.0f} s"
            raise LinkLost(silence) from None

    async def _start_stage(self, host: str) -> None:
        """The stage process listens on the address that this machine reaches the controller from."""
        if host != self._host:
            async with self._starting:
                for child in list(self._children.values()):
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
            if self._is_stopping:
                raise ClusterError("this node is stopping")
            if role not in self._children:
                if role == "stage" and self._machine.done():
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
            with contextlib.suppress(ClusterError):  # We are stopping.
                await self._ensure_child("stage")

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


async def _append(copy: ModelCopy, sha256: str, content: bytes, total_bytes: int) -> bool:
    """On a thread that a cancellation waits for: whoever goes on finds the file as it stays."""
    appending = asyncio.ensure_future(asyncio.to_thread(copy.append, sha256, content, total_bytes))
    try:
        return await asyncio.shield(appending)
    except asyncio.CancelledError:
        await asyncio.wait([appending])
        raise
