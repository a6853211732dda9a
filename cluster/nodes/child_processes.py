"""A node's orders and the child processes that carry them out: stage, coordinator, embedder of each deployment."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from pathlib import Path

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.errors import ClusterError, LinkLost
from cluster.machine import Machine
from cluster.models.checkpoint import stage_tensor_names
from cluster.models.model_card import read_card
from cluster.models.store import check_files
from cluster.nodes.child import Child, Handle, Role
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

# The stage process that has measured the machine and that the next deployment takes.
_IDLE = ""

_Assignment = wire.AssignStage | wire.AssignCoordinator | wire.AssignEmbedder
_Order = wire.Prepare | wire.Shelve | _Assignment
_Key = tuple[str, Role]
"""(deployment, role)"""


class ChildProcesses:
    """Child processes that outlive the controller's connections. `report` takes messages for the controller.

    Each process serves one deployment. At least one stage process always runs, for the next deployment to take.
    """

    def __init__(self, options: NodeOptions, identity: Identity, fetcher: Fetcher, report: Handle) -> None:
        self._options = options
        self._identity = identity
        self._fetcher = fetcher
        self._report = report
        self._host = ""
        self._children: dict[_Key, Child] = {}
        # Unloaded, but not gone yet: their memory is not free.
        self._ending: list[Child] = []
        self._machine: asyncio.Future[Machine] = asyncio.get_running_loop().create_future()
        self._empty_bytes = 0
        self._failed_starts = 0
        # By deployment: the epoch of its last assignment.
        self._epochs: dict[str, int] = {}
        # By deployment and kind of work: its epoch and its task.
        self._assigning: dict[tuple[str, str], tuple[int, asyncio.Task[None]]] = {}
        # The epoch for which a process loads files.
        self._loading: dict[_Key, int] = {}
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
        await self._keep_warm()

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
        """Return the free memory and the state of the children, by deployment."""
        children = [*self._children.values(), *self._ending]
        deployments = dict.fromkeys(child.deployment for child in children)
        reports = {deployment: self._process_report(deployment) for deployment in deployments}
        return wire.Heartbeat(usable_memory_bytes(self._options.share), reports, time.time())

    def _process_report(self, deployment: str) -> wire.ProcessReport:
        children = self._children_of(deployment)
        all_of_it = [*children.values(), *(child for child in self._ending if child.deployment == deployment)]
        # Plans for a deployment may fill the memory of its own layers, since these are freed first.
        loading = [child for child in all_of_it if child.role != "coordinator"] if deployment else []
        return wire.ProcessReport(
            held_bytes=sum(max(0, child.memory_bytes - self._empty_bytes) for child in loading),
            vitals={role: child.vitals for role, child in children.items() if child.vitals},
            silent=[role for role, child in children.items() if child.is_silent],
        )

    def _children_of(self, deployment: str) -> dict[Role, Child]:
        return {role: child for (served, role), child in self._children.items() if served == deployment}

    async def obey(self, message: wire.Message) -> None:
        """Begin an order of the controller. Its result is reported later."""
        match message:
            case wire.Prepare():
                self._begin("files", message, self._get_files(message))
            case wire.Shelve():
                self._begin("standby", message, self._shelve(message))
            case wire.AssignStage():
                self._assign("stage", message)
            case wire.AssignCoordinator():
                self._assign("coordinator", message)
            case wire.AssignEmbedder():
                self._assign("embedder", message)
            case wire.Connect(role=("stage" | "coordinator") as connecting):
                await self._pass_on((message.deployment, connecting), message)
            case wire.Dismiss():
                await self._dismiss(message)
            case wire.Unload():
                self._unload(message)
            case wire.Tidy():
                await self._pass_on((message.deployment, "stage"), message)
            case _:
                pass

    async def keep_out(self, message: wire.Removed) -> None:
        """End the children's connections to removed machines."""
        for key in list(self._children):
            await self._pass_on(key, message)

    def _assign(self, role: Role, order: _Assignment) -> None:
        self._epochs[order.deployment] = order.epoch
        self._begin(role, order, self._prepare(role, order))

    async def _dismiss(self, order: wire.Dismiss) -> None:
        self._cancel_older(order)
        for role in self._children_of(order.deployment):
            if order.role in ("", role):
                await self._pass_on((order.deployment, role), order)

    def _unload(self, order: wire.Unload) -> None:
        epoch = self._epochs.get(order.deployment, wire.ANY_EPOCH)
        if order.epoch == wire.ANY_EPOCH or epoch < order.epoch:
            self._cancel_older(order)
            self._epochs.pop(order.deployment, None)
            self._begin("end", order, self._end(order.deployment))

    def _cancel_older(self, order: wire.Dismiss | wire.Unload) -> None:
        for (deployment, kind), (epoch, task) in self._assigning.items():
            is_older = order.epoch == wire.ANY_EPOCH or epoch < order.epoch
            if deployment == order.deployment and is_older and kind != "end":
                task.cancel()

    async def _end(self, deployment: str) -> None:
        """End a deployment's processes. Shielded: a cancellation must not leave one that is in no list."""
        await asyncio.shield(self._end_all(deployment))
        with contextlib.suppress(ClusterError, OSError):  # This node is stopping, or `start` tries again.
            await asyncio.shield(self._keep_warm())

    async def _end_all(self, deployment: str) -> None:
        async with self._starting:
            ending = [self._children.pop((deployment, role)) for role in self._children_of(deployment)]
            self._loading = {key: epoch for key, epoch in self._loading.items() if key[0] != deployment}
            self._ending += ending
            try:
                await asyncio.gather(*(child.stop() for child in ending))
            finally:
                self._ending = [child for child in self._ending if child not in ending]

    def _begin(
        self,
        kind: str,
        order: _Order | wire.Unload,
        work: Coroutine[None, None, None],
    ) -> None:
        """Start work of one kind for a deployment. A newer order replaces an older one of the same kind."""
        key = order.deployment, kind
        if key in self._assigning:
            self._assigning[key][1].cancel()
        self._assigning = {other: found for other, found in self._assigning.items() if not found[1].done()}
        name = f"{kind} of {order.deployment}, epoch {order.epoch}"
        self._assigning[key] = order.epoch, asyncio.create_task(work, name=name)

    async def _get_files(self, order: wire.Prepare) -> None:
        """Fetch the files while another pipeline may still serve."""
        try:
            if not self._options.shares_files:
                await self._fetch(order)
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed("files", order, error)
        else:
            await self._report(wire.Prepared(order.epoch, deployment=order.deployment))

    async def _prepare(self, role: Role, order: _Assignment) -> None:
        """Fetch the files, then hand the order to the child that carries it out."""
        key: _Key = order.deployment, role
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            if role != "stage":
                await asyncio.to_thread(check_files, Path(source), order.manifest)
            if role != "coordinator":
                self._loading[key] = order.epoch
            # An order for a stopped child goes to its replacement.
            if (silent := self._children.get(key)) and not await silent.answers_within(REPLACE_PATIENCE_S):
                await self._replace(key, silent)
            # Shield the start: otherwise a newer order could interrupt it and leave an unused child.
            child = await asyncio.shield(self._ensure_child(key))
            await child.send(replace(order, source=source))
        except Exception as error:  # noqa: BLE001 - see _failed
            await self._failed(role, order, error)

    async def _shelve(self, order: wire.Shelve) -> None:
        """Have the stage process load a standby beside the stage that it serves."""
        try:
            source = order.source if self._options.shares_files else await self._fetch(order)
            child = await asyncio.shield(self._ensure_child((order.deployment, "stage")))
            await child.send(replace(order, source=source))
            if order.spec.is_first:  # The coordinator runs beside the first stage, so it must be ready, too.
                await asyncio.shield(self._ensure_child((order.deployment, "coordinator")))
        except Exception as error:
            foreseen = isinstance(error, ClusterError | OSError)
            log.error("standby failed", epoch=order.epoch, reason=str(error), exc_info=not foreseen)
            reason = f"{self._options.name}: {error}"
            answer = wire.Shelved(order.epoch, order.spec, ok=False, reason=reason, deployment=order.deployment)
            await self._report(answer)

    async def _failed(self, role: str, order: _Order, error: Exception) -> None:
        """Report the failure of an order's task to the controller, whatever went wrong."""
        foreseen = isinstance(error, ClusterError | OSError)
        log.error("order failed", role=role, epoch=order.epoch, reason=str(error), exc_info=not foreseen)
        reason = f"{self._options.name}: {error}"
        await self._report(wire.Failed(order.epoch, role, reason, deployment=order.deployment))

    async def _fetch(self, order: _Order) -> str:
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
                options = self._options
                arguments = [str(options.threads), str(options.share), str(options.kv_disk_gb)]
                return "cluster.engine.stage_process", arguments

    async def _keep_warm(self) -> None:
        """Start a stage process unless one runs. Raise ClusterError if this node is stopping, OSError if it fails."""
        if not any(role == "stage" for _, role in self._children):
            await self._ensure_child((_IDLE, "stage"))

    async def _ensure_child(self, key: _Key) -> Child:
        """Return the process, and start it if there is none. A deployment's first stage takes the idle process.

        Raise ClusterError if this node is stopping or has processes of too many deployments.
        """
        async with self._starting:
            if self._is_stopping:
                raise ClusterError("this node is stopping")
            if child := self._children.get(key):
                return child
            deployment, role = key
            ending = {child.deployment for child in self._ending}
            if len({served for served, _ in self._children} | ending | {deployment}) > wire.DEPLOYMENTS_MAX:
                raise ClusterError(f"this machine already has processes of {wire.DEPLOYMENTS_MAX} deployments")
            stages = [served for served, kind in self._children if kind == "stage"]
            if role == "stage" and _IDLE in stages:
                child = self._children.pop((_IDLE, "stage"))
                child.deployment = deployment
            else:
                if role == "stage" and not stages and self._machine.done():
                    self._machine = asyncio.get_running_loop().create_future()
                child = await self._start_child(key, *self._program(role))
            self._children[key] = child
            return child

    async def _start_child(self, key: _Key, module: str, arguments: list[str]) -> Child:
        deployment, role = key

        async def handle(message: wire.Message) -> None:
            await self._from_child(child, message)

        async def ended(reason: str) -> None:
            await self._child_ended(child, reason)

        async def silent(reason: str) -> None:
            await self._report(self.heartbeat())
            await self._report_failure(child, reason, "silent")

        common = [str(self._identity.folder), self._options.name, self._host, self._options.log_style]
        child = Child(deployment, role, module, [*common, *arguments], handle, ended, silent)
        await child.start()
        return child

    async def _from_child(self, child: Child, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._empty_bytes = child.memory_bytes
            self._failed_starts = 0
            self.torch = message.torch
            if not self._machine.done():
                self._machine.set_result(message.machine)
        elif isinstance(message, wire.DeploymentMessage):
            # A process serves one deployment and does not know its name.
            self._judge_copy(child, message)
            await self._report(replace(message, deployment=child.deployment))

    def _judge_copy(self, child: Child, message: wire.DeploymentMessage) -> None:
        """Doubt this node's copy if a child cannot load it: the files may be damaged."""
        key: _Key = child.deployment, child.role
        match message:
            case wire.Ready():
                self._loading.pop(key, None)
            case wire.Failed(epoch) if key in self._loading and epoch == self._loading[key]:
                self._fetcher.doubt()
            case wire.Shelved(ok=False, reason=reason) if reason:
                self._fetcher.doubt()
            case _:
                pass

    async def _report_failure(self, child: Child, reason: str, cause: wire.Cause) -> None:
        """Report a child's end or silence. That of the idle process concerns no deployment."""
        if child.deployment != _IDLE:
            epoch = self._epochs.get(child.deployment, wire.ANY_EPOCH)
            failure = wire.Failed(epoch, child.role, reason, cause=cause, deployment=child.deployment)
            await self._report(failure)

    async def _child_ended(self, child: Child, reason: str) -> None:
        self._children.pop((child.deployment, child.role), None)
        self._loading.pop((child.deployment, child.role), None)
        await self._report_failure(child, reason, "ended")
        if child.role == "stage":
            await asyncio.sleep(self._restart_pause_s(reason))
            with contextlib.suppress(ClusterError):  # This node is stopping.
                await self._keep_warm()

    def _restart_pause_s(self, reason: str) -> float:
        """Return the pause before an ended stage process starts again, in seconds."""
        self._failed_starts = 0 if self._machine.done() else self._failed_starts + 1
        if self._failed_starts == STARTS_MAX:
            self._machine.set_exception(ClusterError(f"{reason}, {STARTS_MAX} times before it was ready"))
            self._machine.exception()  # Mark the exception as read: possibly no task waits for it.
        return RESTART_PAUSES_S[min(self._failed_starts, len(RESTART_PAUSES_S) - 1)]

    async def _replace(self, key: _Key, child: Child) -> None:
        async with self._starting:
            if self._children.get(key) is child:
                del self._children[key]
                await child.stop()

    async def _pass_on(self, key: _Key, message: wire.Message) -> None:
        """Pass an order on to a child. If the child is gone, its end was reported; the order no longer matters."""
        if child := self._children.get(key):
            with contextlib.suppress(LinkLost):
                await child.send(message)
