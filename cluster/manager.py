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
from cluster.errors import (
    ClusterError,
    ClusterUnavailable,
    LinkLost,
    ModelDoesNotFit,
    ModelError,
    NodeFailed,
    PlanOutdated,
)
from cluster.identity import NodeId
from cluster.model_card import Precision
from cluster.plan import Member, Plan, plan_stages
from cluster.rests import Rests
from cluster.roster import Roster

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 120.0
# How long the first plan waits for machines that are known to be on their way.
GATHER_TIMEOUT_S = 60.0
# How long a plan without a ring that serves waits for machines that still have to get their files.
SOON_S = 5.0
# A ring that has served so long was a good one: what breaks it then is no machine's habit.
SETTLED_S = 60.0
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
        # Machines that have served in a ring that held: of two suspects it is the other one.
        self._proven: frozenset[NodeId] = frozenset()
        self._serving_since_s = 0.0
        self._is_preparing = False
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
            except PlanOutdated as outdated:
                log.info("plan outdated", epoch=self.epoch, reason=str(outdated))
            except Exception as error:  # noqa: BLE001 - the edge of this task: nobody else would plan anew
                pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                failures += 1
                await self._fail(error, pause_s)
                if await self._is_new_within(pause_s):
                    failures = 0

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

    async def _is_new_within(self, pause_s: float) -> bool:
        """Before trying again: whether a machine has joined or the ring that still served has broken meanwhile."""
        serving = self.deployment
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while self.deployment is serving:
                    if isinstance((await self._answer())[1], wire.Hello):
                        break
                return True
        return False

    async def _next_event(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._answer()

    async def _answer(self) -> tuple[NodeId, wire.Message]:
        """The next thing that a node said or that happened to it; what concerns the present ring breaks it.

        Raises PlanOutdated while files are fetched for a plan that this makes pointless.
        """
        member, message = await self._roster.answers.get()
        deployment = self.deployment
        if isinstance(message, wire.Failed) and message.role == "node":
            self._considered -= {member.node_id}  # Whoever comes back may have more to give, or another address.
        if deployment and isinstance(message, wire.Failed) and _concerns(deployment, member, message):
            self._judge(deployment, member.node_id, message)
            await self._break(f"{member.name}: {message.reason}")
            if not self._roster.is_present(deployment.head.node_id):
                # Whoever waits for a machine that is gone would wait for the connection's own timeout.
                await self._use_head(None)
            if self._is_preparing:
                raise PlanOutdated("the ring that was to serve meanwhile is broken")
        # The hello of one that is planned with already may be read late: it is no news.
        is_new = isinstance(message, wire.Hello) and member.node_id not in self._considered
        if is_new and self._is_preparing and self.deployment is None:
            raise PlanOutdated(f"{member.name} may serve sooner")
        return member.node_id, message

    def _judge(self, deployment: Deployment, node_id: NodeId, failure: wire.Failed) -> None:
        """A ring that breaks soon after it was closed would break again with the same machines."""
        if asyncio.get_running_loop().time() - self._serving_since_s >= SETTLED_S:
            self._proven = deployment.ring
            for member_id in deployment.ring:
                self._rests.end(member_id)
        elif failure.role != "node":
            self._leave_out(NodeFailed(node_id, failure.reason, (failure.peer_id,) if failure.peer_id else ()))

    def _must_plan(self) -> bool:
        present = {member.node_id for member in self._roster.membership.present()}
        fresh = [node_id for node_id in present - self._considered if not self._rests.rests(node_id)]
        return bool(present) and (self.deployment is None or bool(fresh))

    async def _deploy(self, model: Model) -> None:
        """One epoch from plan to closed ring. Raises ClusterError, TimeoutError, OSError.

        The ring that serves does so until the new one's machines have all their files, and stays when they
        cannot get them or when the plan leaves everything as it is.
        """
        plan, considered = self._plan(model, self._roster.membership.present())
        if self.deployment and self.deployment.plan.cut == plan.cut:
            log.info("plan unchanged", epoch=self.epoch, reasons=list(plan.reasons))
            self._considered = considered
            return
        try:
            rollout, considered = await self._prepare(model, plan, considered)
            if self.deployment:
                await self._drain(self.deployment, rollout)
            await self._replace(rollout)
        except NodeFailed as failure:
            self._leave_out(failure)
            raise
        # Not who left meanwhile: it may come back with more to give.
        self._considered = considered & {member.node_id for member in self._roster.membership.present()}

    def _plan(
        self, model: Model, members: list[Member], without: frozenset[NodeId] = frozenset()
    ) -> tuple[Plan, frozenset[NodeId]]:
        """A plan and whom it considered.

        Machines that rest, and those in `without`, take part only where the model fits nowhere else.
        """
        serving = self.deployment.ring if self.deployment else frozenset()
        ready = [member for member in members if member.node_id not in without]
        awake = [m for m in ready if m.node_id in serving or not self._rests.rests(m.node_id)]
        for some in (awake, ready):
            if some:
                with contextlib.suppress(ModelDoesNotFit):
                    return self._plan_over(model, some)
        return self._plan_over(model, members)

    def _plan_over(self, model: Model, members: list[Member]) -> tuple[Plan, frozenset[NodeId]]:
        head = self.deployment.head.node_id if self.deployment else None
        # Where the head stays, its callers keep their connection.
        members = sorted(members, key=lambda member: member.node_id != head)
        precision, slots = self._options.precision, self._options.slots
        plan = plan_stages(model.name, model.card, members, precision=precision, slots=slots)
        return plan, frozenset(member.node_id for member in members)

    async def _prepare(
        self, model: Model, plan: Plan, considered: frozenset[NodeId]
    ) -> tuple[Rollout, frozenset[NodeId]]:
        """Have the files fetched. Without a ring that serves, those who have theirs do not wait for the others."""
        rollout = self._begin(model, plan)
        if self.deployment is None:
            self._considered = considered
        self._is_preparing = True
        try:
            late = await (rollout.prepare() if self.deployment else rollout.prepare(SOON_S))
            if late:
                members = self._roster.membership.present()
                plan, considered = self._plan(model, members, without=late)
                rollout = self._begin(model, plan)
                if late := await rollout.prepare():
                    raise NodeFailed(next(iter(late)), "a machine has not got its files in a day")
        finally:
            self._is_preparing = False
        return rollout, considered

    def _begin(self, model: Model, plan: Plan) -> Rollout:
        rollout = Rollout(self._epochs.advance(), model, plan, self._roster.send, self._answer)
        for reason in (*plan.reasons, *(stage.reason for stage in plan.stages)):
            log.info("plan", epoch=rollout.epoch, reason=reason)
        return rollout

    async def _drain(self, deployment: Deployment, rollout: Rollout) -> None:
        """Let running requests finish before a ring that works is taken apart."""
        with contextlib.suppress(TimeoutError, LinkLost):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._roster.send(deployment.head.node_id, wire.Drain())
                while self.deployment is deployment:
                    node_id, message = await self._answer()
                    if isinstance(message, wire.Drained) and node_id == deployment.head.node_id:
                        return
                    if isinstance(message, wire.Failed) and node_id in rollout.ring:
                        # The head starts nothing any more: there has to be another ring in any case.
                        await self._break(message.reason)
                        raise PlanOutdated(message.reason)

    async def _replace(self, rollout: Rollout) -> None:
        """Take the old ring apart and close the new one."""
        if self.deployment:
            self._proven = self.deployment.ring
        await self._break("the cluster is being planned")
        for member in self._roster.membership.present():
            with contextlib.suppress(LinkLost):
                await self._roster.send(member.node_id, wire.Dismiss(rollout.epoch))
        deployment = await rollout.run()
        try:
            await self._use_head(deployment.head)
        except ClusterUnavailable as error:
            raise NodeFailed(deployment.head.node_id, error.message) from None
        self.deployment = deployment
        self._serving_since_s = asyncio.get_running_loop().time()
        await self.tell("ready", f"{rollout.model.name} over {len(rollout.plan.stages)} node(s)")
        log.info("cluster ready", epoch=rollout.epoch, round_trip_ms=round(deployment.round_trip_ms, 1))

    def _leave_out(self, failure: NodeFailed) -> None:
        """Of machines that cannot reach each other, one that has not proven itself in a ring rests."""
        suspects = [NodeId(node_id) for node_id in (failure.node_id, *failure.peer_ids)]
        culprit = next((node_id for node_id in suspects if node_id not in self._proven), suspects[0])
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
