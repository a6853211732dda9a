"""A node's orders and the child processes that carry them out: its stage, a coordinator, an embedder."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Literal

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.errors import ClusterError, LinkLost
from cluster.machine import Machine
from cluster.models.checkpoint import stage_tensor_names
from cluster.models.model_card import read_card
from cluster.models.store import check_files
from cluster.nodes.child import Child, Handle
from cluster.nodes.file_fetcher import Fetcher
from cluster.nodes.node_options import NodeOptions
from cluster.nodes.probe import usable_memory_bytes
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 120.0
# The pause before an ended stage process starts again, by how often it has ended before it was ready.
RESTART_PAUSES_S = (0.2, 1.0, 5.0, 15.0, 60.0)
# After this many such ends a joining machine gives up and says why.
STARTS_MAX = 3
# A silent child has this long to show a sign of life before another one replaces it.
REPLACE_PATIENCE_S = 3.0

Role = Literal["stage", "coordinator", "embedder"]

_Order = wire.AssignStage | wire.AssignCoordinator | wire.AssignEmbedder


class ChildProcesses:
    """Child processes that outlive the controller's connections. `report` takes messages for the controller."""

    def __init__(self, options: NodeOptions, identity: Identity, fetcher: Fetcher, report: Handle) -> None:
        self._options = options
        self._identity = identity
        self._fetcher = fetcher
        self._report = report
        self._host = ""
        self._children: dict[Role, Child] = {}
        self._machine: asyncio.Future[Machine] = asyncio.get_running_loop().create_future()
        self._empty_stage_bytes = 0
        self._failed_starts = 0
        self._epoch = 0
        self._embedder_epoch = 0
        # By kind of work: its epoch and its task.
        self._assigning: dict[str, tuple[int, asyncio.Task[None]]] = {}
        # By role: the epoch for which it loads files.
        self._loading: dict[str, int] = {}
        self._starting = asyncio.Lock()
        self._is_stopping = False
        # The torch version of the stage process.
        self.torch = ""

    async def start(self, host: str) -> None:
        """Start a stage process that listens on this address. End children that listen on another one."""
        if host != self._host:
            async with self._starting:
                for child in list(self._children.values()):
                    await child.stop()
                self._children.clear()
                self._host = host
        await self._ensure_child("stage")

    async def stop(self) -> None:
        tasks = [task for _, task in self._assigning.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with self._starting:  # A child that is being started is in the list by then, and no other follows.
            self._is_stopping = True
            await asyncio.gather(*(child.stop() for child in self._children.values()))

    async def probed_machine(self) -> Machine:
        """Return what the stage process has found here. Raise ClusterError if it does not come up."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._machine), START_TIMEOUT_S)
        except TimeoutError:
            raise ClusterError(f"the stage process did not start within {START_TIMEOUT_S:.0f} s") from None

    def heartbeat(self) -> wire.Heartbeat:
        """Return the state of the children, and the memory that a new assignment could fill."""
        children = self._children
        vitals: dict[str, wire.Vitals] = {role: child.vitals for role, child in children.items() if child.vitals}
        # An embedder is in no pipeline. `Failed` reports its end.
        silent: list[str] = [role for role, child in children.items() if child.is_silent and role != "embedder"]
        return wire.Heartbeat(self._memory_usable_bytes(), vitals, silent, time.time())

    def _memory_usable_bytes(self) -> int:
        """Return the usable memory in bytes. Memory of the current assignment counts, since it is freed first."""
        stage = self._children.get("stage")
        held_bytes = max(0, stage.memory_bytes - self._empty_stage_bytes) if stage else 0
        return usable_memory_bytes(self._options.share) + held_bytes

    async def obey(self, message: wire.Message) -> None:
        """Begin an order of the controller. Its result is reported later."""
        match message:
            case wire.Prepare():
                self._begin("files", message.epoch, self._get_files(message))
            case wire.Shelve():
                self._begin("standby", message.epoch, self._shelve(message))
            case wire.AssignStage() | wire.AssignCoordinator():
                self._epoch = message.epoch
                role: Role = "stage" if isinstance(message, wire.AssignStage) else "coordinator"
                self._begin(role, message.epoch, self._prepare(role, message))
            case wire.AssignEmbedder():
                self._embedder_epoch = message.epoch
                self._begin("embedder", message.epoch, self._prepare("embedder", message))
            case wire.Dismiss(epoch, "embedder"):
                if self._embedder_epoch < epoch:
                    self._begin("embedder", epoch, self._end_embedder())
            case wire.Connect(role=("stage" | "coordinator") as connecting):
                await self._pass_on(connecting, message)
            case wire.Dismiss():
                await self._dismiss(message)
            case wire.Tidy():
                await self._pass_on("stage", message)
            case _:
                pass

    async def keep_out(self, message: wire.Removed) -> None:
        """End the children's connections to removed machines."""
        for role in list(self._children):
            await self._pass_on(role, message)

    async def _dismiss(self, order: wire.Dismiss) -> None:
        for kind, (epoch, task) in self._assigning.items():
            if epoch < order.epoch and kind != "embedder":
                task.cancel()
        for role in list(self._children):
            if order.role in ("", role) and role != "embedder":
                await self._pass_on(role, order)

    async def _end_embedder(self) -> None:
        if child := self._children.get("embedder"):
            await asyncio.shield(self._replace("embedder", child))

    def _begin(self, kind: str, epoch: int, work: Coroutine[None, None, None]) -> None:
        """Start work of one kind. A newer order replaces an older one of the same kind."""
        if kind in self._assigning:
            self._assigning[kind][1].cancel()
        self._assigning[kind] = epoch, asyncio.create_task(work, name=f"{kind} of epoch {epoch}")

    async def _get_files(self, order: wire.Prepare) -> None:
        """Fetch the files while another pipeline may still serve."""
        try:
            if not self._options.shares_files:
                await self._fetch(order)
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed("files", order.epoch, error)
        else:
            await self._report(wire.Prepared(order.epoch))

    async def _prepare(self, role: Role, order: _Order) -> None:
        """Fetch the files, then hand the order to the child that carries it out."""
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            if role != "stage":
                await asyncio.to_thread(check_files, Path(source), order.manifest)
            if role != "coordinator":
                self._loading[role] = order.epoch
            # An order for a stopped child goes to its replacement.
            if (silent := self._children.get(role)) and not await silent.answers_within(REPLACE_PATIENCE_S):
                await self._replace(role, silent)
            # Shield the start: otherwise a newer order could interrupt it and leave an unused child.
            child = await asyncio.shield(self._ensure_child(role))
            await child.send(replace(order, source=source))
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed(role, order.epoch, error)

    async def _shelve(self, order: wire.Shelve) -> None:
        """Have the stage process load a standby beside the stage that it serves."""
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            child = await asyncio.shield(self._ensure_child("stage"))
            await child.send(replace(order, source=source))
            if order.spec.is_first:  # The coordinator runs beside the first stage, so it must be ready, too.
                await asyncio.shield(self._ensure_child("coordinator"))
        except Exception as error:
            foreseen = isinstance(error, ClusterError | OSError)
            log.error("standby failed", epoch=order.epoch, reason=str(error), exc_info=not foreseen)
            reason = f"{self._options.name}: {error}"
            await self._report(wire.Shelved(order.epoch, order.spec, ok=False, reason=reason))

    async def _failed(self, role: str, epoch: int, error: Exception) -> None:
        """Report the failure of an order's task to the controller, whatever went wrong."""
        foreseen = isinstance(error, ClusterError | OSError)
        log.error("order failed", role=role, epoch=epoch, reason=str(error), exc_info=not foreseen)
        await self._report(wire.Failed(epoch, role, f"{self._options.name}: {error}"))

    async def _fetch(self, order: wire.Prepare | wire.Shelve | _Order) -> str:
        """Get the files that this node lacks of the model. Return the folder of its copy."""
        manifest = order.manifest
        match order:
            case wire.AssignCoordinator():
                names: list[str] = []
            case wire.AssignEmbedder():
                names = list(manifest.tensors)
            case _:
                names = stage_tensor_names(read_card(manifest.config), order.spec, manifest.tensors)
        return await self._fetcher.fetch(manifest, names, order.sources)

    def _program(self, role: Role) -> tuple[str, list[str]]:
        match role:
            case "coordinator":
                return "cluster.engine.coordinator_process", []
            case "embedder":
                return "cluster.engine.embedder_process", [str(self._options.threads)]
            case "stage":
                return "cluster.engine.stage_process", [str(self._options.threads), str(self._options.share)]

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

        async def silent(reason: str) -> None:
            await self._report(self.heartbeat())
            await self._report(wire.Failed(self._epoch_of(role), role, reason, cause="silent"))

        common = [str(self._identity.folder), self._options.name, self._host, self._options.log_style]
        child = Child(role, module, [*common, *arguments], handle, ended, silent)
        await child.start()
        return child

    async def _from_child(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            stage = self._children.get("stage")
            self._empty_stage_bytes = stage.memory_bytes if stage else 0
            self._failed_starts = 0
            self.torch = message.torch
            if not self._machine.done():
                self._machine.set_result(message.machine)
        else:
            self._judge_copy(message)
            await self._report(message)

    def _judge_copy(self, message: wire.Message) -> None:
        """Doubt this node's copy if a child cannot load it: the files may be damaged."""
        match message:
            case wire.Ready(role=role):
                self._loading.pop(role, None)
            case wire.Failed(epoch, ("stage" | "embedder") as role) if epoch == self._loading.get(role, 0):
                self._fetcher.doubt()
            case wire.Shelved(ok=False, reason=reason) if reason:
                self._fetcher.doubt()
            case _:
                pass

    def _epoch_of(self, role: Role) -> int:
        return self._embedder_epoch if role == "embedder" else self._epoch

    async def _child_ended(self, role: Role, reason: str) -> None:
        self._children.pop(role, None)
        await self._report(wire.Failed(self._epoch_of(role), role, reason, cause="ended"))
        if role == "stage":
            await asyncio.sleep(self._restart_pause_s(reason))
            with contextlib.suppress(ClusterError):  # This node is stopping.
                await self._ensure_child("stage")

    def _restart_pause_s(self, reason: str) -> float:
        """Return the pause before an ended stage process starts again, in seconds."""
        self._failed_starts = 0 if self._machine.done() else self._failed_starts + 1
        if self._failed_starts == STARTS_MAX:
            self._machine.set_exception(ClusterError(f"{reason}, {STARTS_MAX} times before it was ready"))
            self._machine.exception()  # Mark the exception as read: possibly no task waits for it.
        return RESTART_PAUSES_S[min(self._failed_starts, len(RESTART_PAUSES_S) - 1)]

    async def _replace(self, role: Role, child: Child) -> None:
        async with self._starting:
            if self._children.get(role) is child:
                del self._children[role]
                await child.stop()

    async def _pass_on(self, role: Role, message: wire.Message) -> None:
        """Pass an order on to a child. If the child is gone, its end was reported; the order no longer matters."""
        if child := self._children.get(role):
            with contextlib.suppress(LinkLost):
                await child.send(message)
