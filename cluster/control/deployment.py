"""One epoch's pipeline, from a plan to a first frame that has passed all stages and come back.

Stages do not load again what they already hold. A stage with unchanged layers keeps its weights. It keeps its KV
cache, too, if the coordinator stays. A standby takes its layers from its shelf.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from cluster import wire
from cluster.control.loaded_stages import LoadedStages
from cluster.errors import ClusterError, LinkLost, NodeFailed, PeerRejected
from cluster.joining.handshake import check_ready
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import Plan, PlannedStage
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

# An agent gives up by itself if it receives nothing for a minute. Slow links may take hours for large models.
PREPARE_TIMEOUT_S = 24 * 3600.0
LOAD_TIMEOUT_S = 900.0
CONNECT_TIMEOUT_S = 30.0
# Neighbours notice a broken link a moment before the machine behind it is reported.
CAUSE_PATIENCE_S = 0.3
_REASON_CHARACTERS_MAX = 300

Answer = TypeVar("Answer", wire.Prepared, wire.Shelved, wire.Ready, wire.Connected, wire.PipelineClosed)


@dataclass(frozen=True, slots=True)
class Model:
    """A model on the controller's machine, hashed and checked."""

    name: str
    folder: Path
    manifest: Manifest
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Deployment:
    """A working pipeline, and the address where its coordinator takes callers.

    `unconstrained` says why the pipeline cannot constrain answers to a schema; it is empty if it can.
    """

    epoch: int
    plan: Plan
    coordinator: wire.Address
    round_trip_ms: float
    unconstrained: str = ""

    @property
    def pipeline(self) -> frozenset[NodeId]:
        return frozenset(stage.member.node_id for stage in self.plan.stages)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Carries out one plan. `send` and `answer` reach the nodes.

    `answer` takes a time of the event loop's clock. It raises TimeoutError if there is no message by then, and
    ClusterError if a node fails. `after_error` is for the coordinator: see wire.Connect.
    """

    epoch: int
    model: Model
    plan: Plan
    loaded_stages: LoadedStages
    send: Callable[[NodeId, wire.DeploymentMessage], Awaitable[None]]
    answer: Callable[[float], Awaitable[tuple[NodeId, wire.Message]]]
    after_error: bool = False

    @property
    def pipeline(self) -> list[NodeId]:
        return [stage.member.node_id for stage in self.plan.stages]

    @property
    def new_stages(self) -> list[PlannedStage]:
        """The stages that must still be loaded on their machines."""
        return [
            stage for stage in self.plan.stages if not self.loaded_stages.has(stage.member.node_id, stage.spec)
        ]

    async def prepare(self, within_s: float = PREPARE_TIMEOUT_S) -> frozenset[NodeId]:
        """Have every machine of the plan fetch its files, and change nothing else.

        Return the machines that do not have them after `within_s` seconds. Raise as `run` does.
        """
        waiting: set[NodeId] = set()
        for stage in self.new_stages:
            order = wire.Prepare(self.epoch, stage.spec, self.model.manifest, str(self.model.folder))
            await self.send(stage.member.node_id, order)
            waiting.add(stage.member.node_id)
        until_s = now_s() + within_s
        with contextlib.suppress(TimeoutError):
            while waiting:
                node_id, _ = await self._next(wire.Prepared, until_s)
                waiting.discard(node_id)
        return frozenset(waiting)

    async def shelve(self, stages: list[PlannedStage]) -> None:
        """Have these stages loaded while the old pipeline serves, so that the switch itself is short.

        Raise as `run` does, also if a process that should load one ends.
        """
        waiting: dict[NodeId, StageSpec] = {}
        for stage in stages:
            others = [*self.loaded_stages.shelved.get(stage.member.node_id, ())]
            manifest, source = self.model.manifest, str(self.model.folder)
            order = wire.Shelve(self.epoch, stage.spec, manifest, source, others=others)
            await self.send(stage.member.node_id, order)
            waiting[stage.member.node_id] = stage.spec
        until_s = now_s() + LOAD_TIMEOUT_S
        with contextlib.suppress(TimeoutError):
            while waiting:
                node_id, shelved = await self._next(wire.Shelved, until_s, waiting)
                if waiting.get(node_id) == shelved.spec:
                    del waiting[node_id]
                    if shelved.ok:
                        self.loaded_stages.shelved.setdefault(node_id, set()).add(shelved.spec)

    async def run(self) -> Deployment:
        """Load and link the pipeline. Raise NodeFailed with the first node's reason, LinkLost or TimeoutError."""
        pipeline = self.pipeline
        await self._assign(pipeline)
        coordinator, stages = await self._listening(pipeline)
        fresh = [at for at, node_id in enumerate(pipeline) if not stages[node_id].kept]
        try:
            round_trip_ms = await self._close(pipeline, coordinator, stages, fresh)
        except TimeoutError:
            reason = f"the pipeline did not close within {CONNECT_TIMEOUT_S:.0f} s"
            raise NodeFailed(pipeline[0], reason, tuple(pipeline[1:])) from None
        self.loaded_stages.serve(pipeline[0], self.plan)
        address = wire.Address(pipeline[0], coordinator.host, coordinator.client_port)
        unconstrained = self._unconstrained(coordinator, stages[pipeline[-1]])
        return Deployment(self.epoch, self.plan, address, round_trip_ms, unconstrained)

    async def _assign(self, pipeline: list[NodeId]) -> None:
        """Order all machines to load. The coordinator runs on the first stage's node, the cheapest hop."""
        manifest, source = self.model.manifest, str(self.model.folder)
        seal_key = secrets.token_bytes(wire.SEAL_KEY_BYTES)
        for stage, upstream in zip(self.plan.stages, [pipeline[0], *pipeline[:-1]], strict=True):
            node_id, spec = stage.member.node_id, stage.spec
            keep_kv = self.loaded_stages.keeps_kv(pipeline[0], node_id, spec)
            if not keep_kv:
                self.loaded_stages.assign(node_id, spec)
            key = seal_key if spec.is_last else b""
            await self.send(node_id, wire.AssignStage(self.epoch, spec, manifest, source, upstream, keep_kv, key))
        coordinator = wire.AssignCoordinator(
            epoch=self.epoch,
            manifest=manifest,
            source=source,
            upstream=pipeline[-1],
            stages=len(pipeline),
            context_tokens=self.plan.context_tokens,
            kv_blocks=self.plan.kv_blocks,
            slots=self.plan.slots,
            terms=self._terms,
            seal_key=seal_key,
        )
        await self.send(pipeline[0], coordinator)

    async def _listening(self, pipeline: list[NodeId]) -> tuple[wire.Ready, dict[NodeId, wire.Ready]]:
        """Return where coordinator and stages listen, once all have loaded. Raise NodeFailed if one is late."""
        coordinator: wire.Ready | None = None
        stages: dict[NodeId, wire.Ready] = {}
        until_s = now_s() + LOAD_TIMEOUT_S
        try:
            while coordinator is None or len(stages) < len(pipeline):
                node_id, ready = await self._next(wire.Ready, until_s)
                if ready.role == "coordinator" and node_id == pipeline[0]:
                    _check_ports(node_id, ready.port, ready.client_port)
                    coordinator = ready
                elif ready.role == "stage":
                    self._check(node_id, ready)
                    stages[node_id] = ready
                    if not ready.kept:
                        self.loaded_stages.assign(node_id, self._stage(node_id).spec)
        except TimeoutError:
            late = next((node_id for node_id in pipeline if node_id not in stages), pipeline[0])
            raise NodeFailed(late, f"a machine has not loaded its layers within {LOAD_TIMEOUT_S:.0f} s") from None
        return coordinator, stages

    def _unconstrained(self, coordinator: wire.Ready, last: wire.Ready) -> str:
        """Return why the pipeline cannot follow schemas, or "". Only its coordinator and last stage read them."""
        for stage, ready in ((self.plan.stages[0], coordinator), (self.plan.stages[-1], last)):
            if ready.unconstrained:
                reason = f"{stage.member.name}: {ready.unconstrained[:_REASON_CHARACTERS_MAX]}"
                log.warning("JSON schemas not enforced", epoch=self.epoch, reason=reason)
                return reason
        return ""

    @property
    def _terms(self) -> wire.Terms:
        return wire.Terms(self.model.manifest.digest, self.plan.precision)

    def _stage(self, node_id: NodeId) -> PlannedStage:
        return next(stage for stage in self.plan.stages if stage.member.node_id == node_id)

    def _check(self, node_id: NodeId, ready: wire.Ready) -> None:
        _check_ports(node_id, ready.port)
        stage = self._stage(node_id)
        try:
            check_ready(stage.member.name, self._terms, stage.spec.wire, ready)
        except PeerRejected as error:
            raise NodeFailed(node_id, str(error)) from None

    async def _close(
        self, pipeline: list[NodeId], coordinator: wire.Ready, stages: dict[NodeId, wire.Ready], fresh: list[int]
    ) -> float:
        """Link the stages, then the coordinator, so that its first frame can pass. Return the round trip in ms."""
        until_s = now_s() + CONNECT_TIMEOUT_S
        for node_id, next_id in zip(pipeline, [*pipeline[1:], None], strict=True):
            downstream = (
                _address(pipeline[0], coordinator) if next_id is None else _address(next_id, stages[next_id])
            )
            await self.send(node_id, wire.Connect(self.epoch, "stage", downstream))
        for _ in pipeline:
            await self._next(wire.Connected, until_s)
        first = _address(pipeline[0], stages[pipeline[0]])
        await self.send(pipeline[0], wire.Connect(self.epoch, "coordinator", first, fresh, self.after_error))
        _, closed = await self._next(wire.PipelineClosed, until_s)
        return closed.round_trip_ms

    async def _next(
        self, kind: type[Answer], until_s: float, loading: Collection[NodeId] = ()
    ) -> tuple[NodeId, Answer]:
        """Return the pipeline's next answer of this kind and epoch. Raise the error of a failure in this epoch.

        The end of a stage process among those that are `loading` also ends the rollout, whatever its epoch. Raise
        TimeoutError if there is no answer in time.
        """
        while True:
            node_id, answer = await self.answer(until_s)
            if node_id not in self.pipeline:
                continue
            match answer:
                case wire.Failed() if self._concerns(answer):
                    raise await self._cause(node_id, answer)
                case wire.Failed(role="stage", cause="ended", reason=reason) if node_id in loading:
                    raise NodeFailed(node_id, reason)
                case kind(epoch=self.epoch):
                    return node_id, answer
                case _:
                    continue

    def _concerns(self, failure: wire.Failed) -> bool:
        return failure.epoch in (self.epoch, wire.ANY_EPOCH)

    async def _cause(self, node_id: NodeId, failure: wire.Failed) -> ClusterError:
        """Return the error for a failure, by the first clear report on it. Raise ClusterError as `answer` does."""
        until_s = now_s() + CAUSE_PATIENCE_S
        with contextlib.suppress(TimeoutError):
            while not is_clear(failure):
                other_id, answer = await self.answer(until_s)
                if other_id in self.pipeline and isinstance(answer, wire.Failed) and self._concerns(answer):
                    node_id, failure = (other_id, answer) if is_clear(answer) else (node_id, failure)
        if failure.role == "node":  # The machine is gone. Plans use it again when it is back.
            return LinkLost(failure.reason)
        return suspicion(node_id, failure)


def is_clear(failure: wire.Failed) -> bool:
    """Tell whether a machine reports what happened, not only that a link is broken."""
    return failure.role == "node" or failure.cause != "error" or not failure.peer_id


def suspicion(node_id: NodeId, failure: wire.Failed) -> NodeFailed:
    """Return the machines that a report may incriminate.

    For an invalid frame its sender comes first, otherwise the reporter.
    """
    if not failure.peer_id:
        return NodeFailed(node_id, failure.reason)
    if failure.cause == "invalid":
        return NodeFailed(failure.peer_id, failure.reason, (node_id,))
    return NodeFailed(node_id, failure.reason, (failure.peer_id,))


def now_s() -> float:
    """Return the event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


def _check_ports(node_id: NodeId, *ports: int) -> None:
    """Raise NodeFailed for an invalid port, before a neighbour dials it."""
    if wrong := [port for port in ports if not 0 < port < 2**16]:
        raise NodeFailed(node_id, f"a machine reported the invalid port {wrong[0]}")


def _address(node_id: NodeId, ready: wire.Ready) -> wire.Address:
    return wire.Address(node_id, ready.host, ready.port)
