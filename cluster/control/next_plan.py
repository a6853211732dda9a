"""The choice of the next plan: the broken pipeline with its standbys, or a new pipeline over the fit machines."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from msgspec import structs

from cluster.control.deployment import Deployment, Model
from cluster.control.fault_attribution import FaultAttribution
from cluster.control.loaded_stages import LoadedStages
from cluster.control.owners import Owners
from cluster.control.recovery import with_copies, with_stand_ins
from cluster.control.subscription import Subscription
from cluster.control.topology import PlanDraft
from cluster.errors import ModelDoesNotFit
from cluster.models.model_card import ModelCard, Precision
from cluster.plans.memory_division import Claim, Share, divide_memory
from cluster.plans.needs import StageMemory, stage_memory
from cluster.plans.network import Network
from cluster.plans.plan import Goal, Member, Pin, Plan, fit_check, plan_stages
from cluster.plans.plan_changes import explain_change
from cluster.trust.identity import NodeId


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The operator's choices for plans: arithmetic, parallel sequences, machines to wait for at the start.

    A model is split into at least `stages_min` stages if that many machines are there.
    """

    precision: Precision | None = None
    slots: int = 32
    expected_nodes: int = 1
    stages_min: int = 1
    owners: Owners | None = None
    goal: Goal = "throughput"
    context_tokens: int | None = None


class Planning:
    """Makes plans from the machines that a deployment may use, the recorded failures and the loaded stages."""

    def __init__(
        self,
        subscription: Subscription,
        options: PlanOptions,
        fault_attribution: FaultAttribution,
        loaded_stages: LoadedStages,
        claims: Callable[[], Sequence[Claim]],
    ) -> None:
        """`claims` returns the needs of all deployments that share the machines."""
        self._claims = claims
        self._subscription = subscription
        self._options = options
        self._fault_attribution = fault_attribution
        self._loaded_stages = loaded_stages

    def is_fit(self, node_id: NodeId) -> bool:
        """Tell whether a machine is there, shows signs of life and has not just broken a pipeline."""
        is_paused = self._fault_attribution.quarantine.quarantine(node_id)
        return self._subscription.is_well(node_id) and not is_paused

    def same_partition(self, last: Deployment) -> Plan | None:
        """Return the last plan with standbys in place of lost machines, or None if one has no standby."""
        fit = {member.node_id for member in self._subscription.available() if self.is_fit(member.node_id)}
        lost = last.pipeline - fit
        ready = {(node_id, spec) for node_id in fit for spec in self._loaded_stages.shelved.get(node_id, ())}
        # An ended process starts again, but a standby is ready now.
        for missing in (lost | self._fault_attribution.restarting, lost):
            if plan := with_stand_ins(last.plan, missing, ready):
                return plan
        return None

    async def new_plan(
        self,
        model: Model,
        serving: Deployment | None,
        coordinator: NodeId | None,
        without: AbstractSet[NodeId] = frozenset(),
    ) -> Plan:
        """Return a plan over all machines that may take part.

        Raise ModelDoesNotFit, or MachineUnknown for the owners. Pausing or silent machines, and those in
        `without`, take part only if the model fits nowhere else. Machines with the fewest failures come first. If
        the coordinator stays, callers keep their connection and stages their KV cache.
        """
        members = self._subscription.available()
        pipeline = serving.pipeline if serving else frozenset[NodeId]()
        ready = [member for member in members if member.node_id not in without]
        well = [member for member in ready if self._subscription.is_well(member.node_id)]
        fit = [member for member in well if member.node_id in pipeline or self.is_fit(member.node_id)]
        failed = {member.node_id: self._fault_attribution.quarantine.times(member.node_id) for member in well}
        tried = [[m for m in well if failed[m.node_id] <= most] for most in sorted(set(failed.values()))]
        for some in (fit, *tried, ready):
            if some:
                with contextlib.suppress(ModelDoesNotFit):
                    return await self._plan_over(model, some, coordinator)
        return await self._plan_over(model, members, coordinator)

    async def draft(
        self,
        model: Model,
        now: Plan | None,
        coordinator: NodeId | None,
        without: AbstractSet[NodeId],
        including: AbstractSet[NodeId] = frozenset(),
    ) -> PlanDraft:
        """Return the plan without the machines in `without` and with the drained ones in `including`.

        Raise MachineUnknown for the owners.
        """
        present = self._subscription.present()
        # A plan stores the names that its machines had when it was made.
        now = now and now.naming({member.node_id: member.name for member in present})
        out = (self._subscription.draining - including) | without
        members = [member for member in present if member.node_id not in out]
        try:
            then = await self._plan_over(model, members, coordinator)
        except ModelDoesNotFit as error:
            return PlanDraft(now, None, (str(error),))
        return PlanDraft(now, then, explain_change(now, then, out) if now else ())

    def claim(self, model: Model, name: str, serving: Deployment | None) -> Claim:
        """Return the need of memory of the model that callers know by `name`.

        Its standbys are no need: they make room for other deployments.
        """
        network = self._subscription.links.network()

        def least(members: Sequence[Member]) -> Mapping[NodeId, int]:
            return _least(self._plan(model, members, None, network), model.card)

        held = None
        if serving:
            needed = _least(serving.plan, model.card)
            held = {
                node_id: StageMemory(memory.planned_bytes, needed.get(node_id, 0))
                for node_id, memory in stage_memory(serving.plan, model.card).items()
            }
        options = self._options
        may_fit = fit_check(
            model.card, precision=options.precision, slots=options.slots, context_tokens=options.context_tokens
        )
        return Claim(self._subscription.deployment, name, least, held, may_fit=may_fit)

    async def exceeds_share(self, model: Model, serving: Deployment) -> bool:
        """Tell whether other deployments need memory that the serving plan takes."""
        if len(self._claims()) < 2:
            return False
        share = await self._share([member.node_id for member in self._subscription.available()], as_serving=True)
        plan = structs.replace(serving.plan, standbys=())
        return not share.allows(stage_memory(plan, model.card))

    async def _share(self, node_ids: Collection[NodeId], *, as_serving: bool = False) -> Share:
        """Return what this deployment may use of these machines. Raise ModelDoesNotFit or MachineUnknown."""
        claims = self._claims()
        # What a deployment without a claim holds is not free, and stays taken.
        present = self._subscription.membership.present(*(claim.deployment for claim in claims))
        members = [member for member in present if member.node_id in node_ids]
        return await asyncio.to_thread(
            divide_memory, self._subscription.deployment, claims, members, as_serving=as_serving
        )

    async def with_copies(self, model: Model, deployment: Deployment) -> Deployment:
        """Return the deployment with standbys on the machines outside its pipeline now."""
        available = [member.node_id for member in self._subscription.available()]
        members = (await self._share(available, as_serving=True)).members
        spare = [m for m in members if m.node_id not in deployment.pipeline and self.is_fit(m.node_id)]
        network = self._subscription.links.network()
        pin, _ = self._pin()
        return replace(deployment, plan=with_copies(deployment.plan, model.card, spare, network, pin))

    def _pin(self) -> tuple[Pin | None, tuple[str, ...]]:
        """Return which layers stay on whose machines, and the unknown owners.

        Raise MachineUnknown if all are unknown.
        """
        owners = self._options.owners
        return owners.pin(self._subscription.machines) if owners else (None, ())

    async def _plan_over(self, model: Model, members: Sequence[Member], coordinator: NodeId | None) -> Plan:
        _, unknown = self._pin()
        share = await self._share([member.node_id for member in members])
        network = self._subscription.links.network()
        # Plan on a thread: for many machines this takes a second or two, and this loop reads heartbeats.
        plan = await asyncio.to_thread(self._plan, model, share.members, coordinator, network)
        added = (share.reason, *unknown) if share.reason else unknown
        return structs.replace(plan, reasons=(*plan.reasons, *added)) if added else plan

    def _plan(self, model: Model, members: Sequence[Member], coordinator: NodeId | None, network: Network) -> Plan:
        return plan_stages(
            model.name,
            model.card,
            members,
            precision=self._options.precision,
            slots=self._options.slots,
            context_tokens=self._options.context_tokens,
            network=network,
            stages_min=self._options.stages_min,
            pin=self._pin()[0],
            goal=self._options.goal,
            coordinator=coordinator,
        )


def _least(plan: Plan, card: ModelCard) -> dict[NodeId, int]:
    """Return the bytes that a plan cannot do without on each machine, by its stages alone."""
    held = stage_memory(structs.replace(plan, standbys=()), card)
    return {node_id: memory.least_bytes for node_id, memory in held.items()}
