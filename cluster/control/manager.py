"""The deployment of a model as a pipeline: planned, rolled out, and planned again when a machine is lost or joins."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from cluster import wire
from cluster.control.deployment import Deployment, Model, Rollout, now_s
from cluster.control.loaded_stages import LoadedStages
from cluster.control.next_plan import Planning, PlanOptions
from cluster.control.recovery import has_room
from cluster.control.specs import DeploymentSpec
from cluster.control.standbys import Standbys
from cluster.control.subscription import Subscription
from cluster.control.supervisor import AGAIN_S, Supervisor
from cluster.control.topology import PlanDraft
from cluster.errors import (
    ClusterUnavailable,
    LinkLost,
    ModelDoesNotFit,
    NodeFailed,
    PlanOutdated,
)
from cluster.plans.memory_division import Claim
from cluster.plans.plan import Member, Plan
from cluster.plans.plan_changes import is_worth
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

# The time that the first plan waits for machines that are known to be on their way.
GATHER_TIMEOUT_S = 60.0
# The time that a plan without a serving pipeline waits for machines that still fetch their files, and the first one
# for models that are still read.
SOON_S = 5.0

UseCoordinator = Callable[[wire.Address | None], Awaitable[None]]
"""Connects callers to this coordinator; None disconnects them. Raises ClusterUnavailable if it is unreachable."""


class DeploymentManager(Supervisor[Model]):
    """Owns the pipeline of one model."""

    def __init__(
        self,
        folder: Path,
        subscription: Subscription,
        options: PlanOptions,
        use_coordinator: UseCoordinator,
        peers: Sequence[Supervisor[Any]],
        spec: DeploymentSpec,
    ) -> None:
        super().__init__(folder, subscription, peers, spec)
        self._expected_nodes = options.expected_nodes
        self._use_coordinator = use_coordinator
        self._considered: frozenset[NodeId] = frozenset()
        self._is_preparing = False
        self._loaded_stages = LoadedStages()
        self._planning = Planning(
            subscription, options, self._fault_attribution, self._loaded_stages, self._claims
        )
        self.standbys = Standbys(self._loaded_stages, subscription.send)
        # The last pipeline that served. The next one keeps its partition, if its machines are there.
        self._last: Deployment | None = None
        self.deployment: Deployment | None = None

    @property
    def serving(self) -> Deployment | None:
        return self.deployment

    def claim(self) -> Claim | None:
        if (model := self.model) is None:
            return None
        return self._planning.claim(model, self.model_name or model.name, self.deployment)

    async def draft(
        self, model: Model, without: frozenset[NodeId], including: frozenset[NodeId] = frozenset()
    ) -> PlanDraft:
        """Return the plan without these machines, and with those although they are drained.

        Nothing is deployed. Raise MachineUnknown.
        """
        now = self.deployment.plan if self.deployment else None
        return await self._planning.draft(model, now, self._coordinator, without, including)

    async def _wait_for_work(self) -> Model:
        """Wait for a model and a reason to plan: new machines, or no working pipeline."""
        while (model := self.model) is None:
            await self._next_event(0.5)
        if self.gathers and not self._epochs.has_advanced:
            await self._gather()
        while not self._must_plan():
            await self._next_event(self._fault_attribution.quarantine.next_end_s())
        if self.deployment is None and self._last:
            until_s = now_s() + self._fault_attribution.patience_s
            with contextlib.suppress(TimeoutError):
                while not self._fault_attribution.is_clear(self._last):
                    await self._answer(until_s)
            self._considered -= self._fault_attribution.close(self._last)
        return model

    async def _gather(self) -> None:
        """Before the first plan, wait for the machines on their way, and for models that need memory, too.

        Models after this one in priority may take SOON_S: a slow pull must not delay the models before it.
        """
        began_s = now_s()
        before = self._peers[: self._peers.index(self)]
        while (waited_s := now_s() - began_s) < GATHER_TIMEOUT_S and (
            len(self._subscription.present()) < self._expected_nodes
            or any(peer.is_reading for peer in (self._peers if waited_s < SOON_S else before))
        ):
            await self._next_event(0.5)

    async def _note(self, member: Member, message: wire.Message) -> None:
        """Handle a message. A failure in the current pipeline breaks it.

        Raise PlanOutdated if files are being fetched for a plan that the message makes pointless.
        """
        if isinstance(message, wire.Failed):
            await self._note_failure(member, message)
        elif isinstance(message, wire.Shelved):
            await self.standbys.note(member.node_id, message)
        elif isinstance(message, wire.Tick):
            # The machine is well again, or no longer drained. It may have more memory.
            self._considered -= {member.node_id}
        # The hello of a machine in the current plan may be read late. That machine is not new.
        is_new = isinstance(message, wire.Hello) and member.node_id not in self._considered
        if is_new and self._is_preparing and self.deployment is None:
            raise PlanOutdated(f"{member.name} may serve sooner")

    async def _note_failure(self, member: Member, failure: wire.Failed) -> None:
        if failure.role == "node" or (failure.role == "stage" and failure.cause == "ended"):
            # A machine that comes back may have more memory or another address, and has nothing loaded.
            self._considered -= {member.node_id}
            self._forget(member.node_id, failure)
        if self._last and _concerns(self._last, member, failure):
            self._fault_attribution.note_failure(member.node_id, failure)
        is_broken = self.deployment is not None and _concerns(self.deployment, member, failure)
        if is_broken:
            await self._break(f"{member.name}: {failure.reason}")
        is_coordinators = self.deployment is None and member.node_id == self._coordinator
        if is_coordinators and (
            failure.role == "node" or (failure.role == "coordinator" and failure.cause == "silent")
        ):
            # Callers of a silent coordinator would wait for the connection's own timeout.
            await self._use_coordinator(None)
        if is_broken and self._is_preparing:
            raise PlanOutdated("the pipeline that should have served meanwhile is broken")

    def _forget(self, node_id: NodeId, failure: wire.Failed) -> None:
        """Note that a stage process is gone.

        If loading a standby ended it, leave that machine alone for a while.
        """
        self._loaded_stages.forget(node_id)
        was_loading = self.standbys.forget(node_id)
        if (
            was_loading
            and failure.role == "stage"
            and not (self.deployment and node_id in self.deployment.pipeline)
        ):
            pause_s = self._fault_attribution.quarantine.add(node_id)
            log.warning("no standby", epoch=self.epoch, node_id=node_id, reason=failure.reason, seconds=pause_s)

    def _must_plan(self) -> bool:
        present = {member.node_id for member in self._subscription.available()}
        fresh = [node_id for node_id in present - self._considered if self._planning.is_fit(node_id)]
        is_leaving = self.deployment is not None and bool(self.deployment.pipeline & self._subscription.draining)
        return bool(present) and (self.deployment is None or bool(fresh) or is_leaving or self._must_check_share)

    async def _deploy(self, model: Model) -> None:
        """Deploy one epoch, from a plan to a complete pipeline. Raise ClusterError, TimeoutError or OSError.

        The current pipeline serves until the machines of the new one have loaded all that their memory holds. It
        stays if they cannot, or if the plan changes nothing.
        """
        self._must_check_share = False
        plan = await self._next_plan(model)
        if plan is None:
            await asyncio.sleep(AGAIN_S)
        else:
            try:
                rollout = await self._prepare(model, plan)
                await self._replace(rollout)
            except NodeFailed as failure:
                self._considered -= {self._fault_attribution.leave_out(failure)}
                raise
            # Do not note machines that left meanwhile: they may come back with more memory.
            present = {member.node_id for member in self._subscription.present()}
            self._considered = frozenset(present.intersection(rollout.plan.considered))
        await self._keep_copies(model)

    async def _next_plan(self, model: Model) -> Plan | None:
        """Return the plan to deploy; None if what serves stays. Raise ModelDoesNotFit or MachineUnknown."""
        serving = self.deployment
        if serving is None:
            repaired = self._planning.same_partition(self._last) if self._last else None
            return repaired or await self._planning.new_plan(model, None, self._coordinator)
        # Before the plan: it must know every deployment that this check knows.
        takes_too_much = await self._planning.exceeds_share(model, serving)
        try:
            plan = await self._planning.new_plan(model, serving, self._coordinator)
        except ModelDoesNotFit as error:
            if serving.pipeline & self._subscription.draining:
                raise
            # A model with priority may need the memory, but what serves is not ended for it.
            log.info("plan unchanged", epoch=self.epoch, reasons=[str(error)])
            self._considered = frozenset(member.node_id for member in self._subscription.available())
            return None
        if takes_too_much or is_worth(serving.plan, plan):
            return plan
        log.info("plan unchanged", epoch=self.epoch, reasons=list(plan.reasons))
        self._considered = frozenset(plan.considered)
        return None

    @property
    def _coordinator(self) -> NodeId | None:
        return self._last.coordinator.node_id if self._last else None

    async def _prepare(self, model: Model, plan: Plan) -> Rollout:
        """Have the files fetched.

        Without a serving pipeline, machines that have their files do not wait for the others.
        """
        rollout = self._begin(model, plan)
        if self.deployment is None:
            self._considered = frozenset(plan.considered)
        self._is_preparing = True
        try:
            late = await (rollout.prepare() if self.deployment else rollout.prepare(SOON_S))
            if late:
                plan = await self._planning.new_plan(model, self.deployment, self._coordinator, without=late)
                rollout = self._begin(model, plan)
                if late := await rollout.prepare():
                    raise NodeFailed(next(iter(late)), "a machine did not receive its files within a day")
            if self.deployment:
                serving = self.deployment.plan
                self.standbys.pause()
                beside = [stage for stage in rollout.new_stages if has_room(stage, serving, model.card)]
                await rollout.shelve(beside)
        finally:
            self._is_preparing = False
        return rollout

    def _begin(self, model: Model, plan: Plan) -> Rollout:
        epoch = self._epochs.advance()
        for reason in (*plan.reasons, *(stage.reason for stage in plan.stages)):
            log.info("plan", epoch=epoch, reason=reason)
        self.record("plan", plan.reasons[0])
        after_error = self._fault_attribution.is_own_error
        return Rollout(epoch, model, plan, self._loaded_stages, self._subscription.send, self._answer, after_error)

    async def _replace(self, rollout: Rollout) -> None:
        """Dismiss the old pipeline and complete the new one. Coordinators keep the requests that they answer."""
        if self.deployment:
            self._fault_attribution.retire(self.deployment.pipeline)
        await self._break("the cluster is being planned")
        coordinator, *others = rollout.pipeline
        for member in self._subscription.present():
            role = "coordinator" if member.node_id in others else ""
            if member.node_id != coordinator:
                with contextlib.suppress(LinkLost):
                    await self._subscription.send(member.node_id, wire.Dismiss(rollout.epoch, role))
        deployment = await rollout.run()
        try:
            await self._use_coordinator(deployment.coordinator)
        except ClusterUnavailable as error:
            raise NodeFailed(deployment.coordinator.node_id, error.message) from None
        self.deployment = self._last = deployment
        self._fault_attribution.open()
        await self.readiness.tell("ready", f"{self.model_name} over {len(rollout.plan.stages)} node(s)")
        log.info("cluster ready", epoch=rollout.epoch, round_trip_ms=round(deployment.round_trip_ms, 1))
        served = f"{self.model_name} is served over {len(rollout.plan.stages)} node(s)"
        self.record("ready", served)

    async def _keep_copies(self, model: Model) -> None:
        """Have machines beside the pipeline keep copies of its stages loaded."""
        if self.deployment:
            self.deployment = self._last = await self._planning.with_copies(model, self.deployment)
            plan, epoch = self.deployment.plan, self.deployment.epoch
            await self.standbys.keep_loaded(epoch, model, plan.standbys)
            used = {stage.member.node_id for stage in (*plan.stages, *plan.standbys)}
            for member in self._subscription.present():
                # A silent process may only be slow: it is not ended.
                if member.node_id not in used and self._subscription.is_well(member.node_id):
                    await self._unload(member.node_id, epoch)

    async def _leave(self) -> None:
        if self.deployment:
            self._fault_attribution.retire(self.deployment.pipeline)
        self.deployment = self._last = None
        self._considered = frozenset()
        self._loaded_stages.clear()
        self.standbys.clear()
        await self._use_coordinator(None)

    async def _break(self, reason: str) -> None:
        if self.deployment:
            log.warning("pipeline broken", epoch=self.deployment.epoch, reason=reason)
            self.record("broken", reason, self.deployment.epoch)
        self.deployment = None
        await self.readiness.tell("planning", reason)


def _concerns(deployment: Deployment, member: Member, failure: wire.Failed) -> bool:
    """Tell whether a failure belongs to this deployment: to a machine in its pipeline, in its epoch."""
    takes_part = any(stage.member.node_id == member.node_id for stage in deployment.plan.stages)
    return takes_part and failure.epoch in (deployment.epoch, wire.ANY_EPOCH)
