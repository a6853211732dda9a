"""The one task that owns the deployment: plans, deploys, and plans anew when a machine is lost or joins."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from cluster import wire
from cluster.deployment import Deployment, Model, Rollout
from cluster.epochs import Epochs
from cluster.errors import ClusterError, ClusterUnavailable, LinkLost, ModelDoesNotFit, ModelError, NodeFailed
from cluster.identity import NodeId
from cluster.model_card import Precision
from cluster.plan import Member, Plan, plan_stages
from cluster.rests import Rests
from cluster.roster import Roster

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 120.0
# How long the first plan waits for machines that are known to be on their way.
GATHER_TIMEOUT_S = 60.0
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Status = Literal["no_model", "waiting", "planning", "ready", "failed"]

UseHead = Callable[[wire.Address | None], Awaitable[None]]
"""Callers are to talk to this head from now on, or to none. Raises ClusterUnavailable when it is out of reach."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the operator decides of plans: arithmetic, sequences at once, machines to wait for at the start."""

    precision: Precision | None = None
    slots: int = 32
    expected_nodes: int = 1


class DeploymentManager:
    """`run` is its task; everything that the nodes say is answered there, one thing after the other."""

    def __init__(self, folder: Path, roster: Roster, options: PlanOptions, use_head: UseHead) -> None:
        self._roster = roster
        self._options = options
        self._use_head = use_head
        self._model: Model | None = None
        self._considered: frozenset[NodeId] = frozenset()
        self._last_ring: frozenset[NodeId] = frozenset()
        self._rests = Rests()
        self._epochs = Epochs(folder)
        self._changed = asyncio.Condition()
        self.status: tuple[Status, str] = ("no_model", "no model was given")
        self.deployment: Deployment | None = None

    @property
    def epoch(self) -> int:
        return self._epochs.current

    async def run(self) -> None:
        """Deploy, watch, deploy anew, for ever."""
        failures = 0
        while True:
            try:
                model = await self._wait_for_work()
                await self._deploy(model)
                failures = 0
            except Exception as error:  # noqa: BLE001 - the edge of this task: nobody else would plan anew
                pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                failures += 1
                await self._fail(error, pause_s)
                await self._wait_for_newcomer(pause_s)

    async def serve(self, model: Model) -> None:
        """From now on this model is deployed as soon as there are machines."""
        self._model = model
        await self.tell("waiting", "no machine is in the cluster")

    async def tell(self, status: Status, reason: str) -> None:
        """Change the status; whoever waits for it looks again."""
        async with self._changed:
            self.status = (status, reason)
            self._changed.notify_all()

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises ClusterUnavailable, with the reason, when there is no working ring in time."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.status[0] in ("ready", "failed", "no_model"))
        except TimeoutError:
            raise ClusterUnavailable(f"the cluster is not ready: {self.status[1]}") from None
        if self.status[0] != "ready":
            raise ClusterUnavailable(self.status[1])

    async def _wait_for_work(self) -> Model:
        """Until there is a model, and machines for it that no plan has considered or no ring that works."""
        while (model := self._model) is None:
            await self._next_event(0.5)
        if not self._epochs.has_advanced:
            await self._gather()
        while not self._must_plan():
            await self._next_event(self._rests.next_end_s())
        return model

    async def _gather(self) -> None:
        """Before the first plan: wait for the machines that are on their way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_TIMEOUT_S):
                while len(self._roster.membership.present()) < self._options.expected_nodes:
                    await self._next_event(0.5)

    async def _wait_for_newcomer(self, pause_s: float) -> None:
        """Before trying again; a machine that joins meanwhile may change the outcome."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while not isinstance((await self._answer())[1], wire.Hello):
                    pass

    async def _next_event(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._answer()

    async def _answer(self) -> tuple[NodeId, wire.Message]:
        """The next thing that a node said or that happened to it; what concerns the present ring breaks it."""
        member, message = await self._roster.answers.get()
        deployment = self.deployment
        if deployment and isinstance(message, wire.Failed) and _concerns(deployment, member, message):
            await self._break(f"{member.name}: {message.reason}")
            if not self._roster.is_present(deployment.head.node_id):
                # Whoever waits for a machine that is gone would wait for the connection's own timeout.
                await self._use_head(None)
        return member.node_id, message

    def _must_plan(self) -> bool:
        present = {member.node_id for member in self._roster.membership.present()}
        fresh = [node_id for node_id in present - self._considered if not self._rests.rests(node_id)]
        return bool(present) and (self.deployment is None or bool(fresh))

    async def _deploy(self, model: Model) -> None:
        """One epoch from plan to closed ring. Raises ClusterError, TimeoutError, OSError.

        The ring that serves does so until the new one's machines have all their files, and stays when they
        cannot get them or when the plan leaves everything as it is.
        """
        plan = self._plan(model, self._roster.membership.present())
        if self.deployment and self.deployment.plan.cut == plan.cut:
            log.info("plan unchanged", epoch=self.epoch, reasons=list(plan.reasons))
            return
        rollout = Rollout(self._epochs.advance(), model, plan, self._roster.send, self._answer)
        for reason in (*plan.reasons, *(stage.reason for stage in plan.stages)):
            log.info("plan", epoch=rollout.epoch, reason=reason)
        try:
            await rollout.prepare()
            if self.deployment:
                await self._drain(self.deployment)
            await self._replace(rollout)
        except NodeFailed as failure:
            self._leave_out(failure)
            raise

    def _plan(self, model: Model, members: list[Member]) -> Plan:
        """Without the machines that rest; with them where the model fits nowhere else."""
        awake = [member for member in members if not self._rests.rests(member.node_id)]
        try:
            return self._plan_over(model, awake or members)
        except ModelDoesNotFit:
            return self._plan_over(model, members)

    def _plan_over(self, model: Model, members: list[Member]) -> Plan:
        self._considered = frozenset(member.node_id for member in members)
        precision, slots = self._options.precision, self._options.slots
        return plan_stages(model.name, model.card, members, precision=precision, slots=slots)

    async def _drain(self, deployment: Deployment) -> None:
        """Let running requests finish before a ring that works is taken apart."""
        with contextlib.suppress(TimeoutError, LinkLost):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._roster.send(deployment.head.node_id, wire.Drain())
                while self.deployment is deployment:
                    node_id, message = await self._answer()
                    if isinstance(message, wire.Drained) and node_id == deployment.head.node_id:
                        return

    async def _replace(self, rollout: Rollout) -> None:
        """Take the old ring apart and close the new one."""
        await self._break("the cluster is being planned")
        for member in self._roster.membership.present():
            with contextlib.suppress(LinkLost):
                await self._roster.send(member.node_id, wire.Dismiss(rollout.epoch))
        deployment = await rollout.run()
        try:
            await self._use_head(deployment.head)
        except ClusterUnavailable as error:
            raise NodeFailed(deployment.head.node_id, error.message) from None
        self._last_ring = frozenset(stage.member.node_id for stage in rollout.plan.stages)
        for node_id in self._last_ring:
            self._rests.end(node_id)
        self.deployment = deployment
        await self.tell("ready", f"{rollout.model.name} over {len(rollout.plan.stages)} node(s)")
        log.info("cluster ready", epoch=rollout.epoch, round_trip_ms=round(deployment.round_trip_ms, 1))

    def _leave_out(self, failure: NodeFailed) -> None:
        """Of two machines that cannot reach each other the one that has not worked in a ring rests."""
        suspects = [NodeId(node_id) for node_id in (failure.node_id, failure.peer_id) if node_id]
        culprit = next((node_id for node_id in suspects if node_id not in self._last_ring), suspects[0])
        pause_s = self._rests.add(culprit)
        self._considered -= {culprit}
        log.warning("node left out", node_id=culprit, reason=str(failure), seconds=pause_s)

    async def _break(self, reason: str) -> None:
        if self.deployment:
            log.warning("ring broken", epoch=self.deployment.epoch, reason=reason)
        self.deployment = None
        await self.tell("planning", reason)

    async def _fail(self, error: Exception, again_in_s: float) -> None:
        """A model that fits nowhere will not fit in a moment; anything else is tried again while callers wait."""
        foreseen = isinstance(error, ClusterError | TimeoutError | OSError)
        reason = str(error) or "machines did not answer in time"
        trace = not foreseen
        log.error("deployment failed", epoch=self.epoch, reason=reason, again_in_s=again_in_s, exc_info=trace)
        if self.deployment is None:
            await self.tell("failed" if isinstance(error, ModelError) else "planning", reason)


def _concerns(deployment: Deployment, member: Member, failure: wire.Failed) -> bool:
    """Whether a failure is one of this deployment's: of a machine in its ring, in its epoch."""
    takes_part = any(stage.member.node_id == member.node_id for stage in deployment.plan.stages)
    return takes_part and failure.epoch in (deployment.epoch, wire.ANY_EPOCH)
