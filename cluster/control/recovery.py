"""The repair of a broken pipeline: the machine at fault, and the standbys that replace it. Pure functions."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from cluster import wire
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec
from cluster.plans.candidates import Candidates, Task
from cluster.plans.needs import stage_memory
from cluster.plans.network import Network
from cluster.plans.plan import Member, Pin, Plan, PlannedStage
from cluster.plans.replicas import place_standbys, with_standby
from cluster.trust.identity import NodeId

Vitals = Callable[[NodeId, str], wire.Vitals | None]
"""(machine, role) -> the progress of its process."""


def with_stand_ins(
    plan: Plan, lost: AbstractSet[NodeId], ready: AbstractSet[tuple[NodeId, StageSpec]]
) -> Plan | None:
    """Return the same partition with every lost machine replaced by a standby that has its stage loaded.

    Return None if a lost machine has no standby. Without lost machines the plan stays the same.
    """
    indexes = {stage.spec: stage.spec.index for stage in plan.stages}
    news: list[str] = []
    loaded = frozenset((node_id, indexes[spec]) for node_id, spec in ready if spec in indexes)
    for stage in plan.stages:
        if stage.member.node_id in lost:
            stepped_in = with_standby(plan, stage.member.node_id, loaded)
            if stepped_in is None:
                return None
            plan = stepped_in
            news.append(plan.reasons[0])
    return replace(plan, reasons=tuple(news)) if news else plan


def with_copies(plan: Plan, card: ModelCard, spare: list[Member], network: Network, pin: Pin | None) -> Plan:
    """Return the plan with standbys on the present machines beside it."""
    members = (*(stage.member for stage in plan.stages), *spare)
    task = Task(
        name="",
        card=card,
        members=members,
        network=network,
        goal=plan.goal,
        streams=1,
        slots=plan.slots,
        context_tokens=plan.context_tokens,
        context_requested=plan.context_tokens,
        stages_min=plan.stages_min,
        pin=pin,
        coordinator=None,
    )
    candidates = Candidates(task, members, plan.precision)
    return replace(plan, standbys=place_standbys(candidates, plan.stages, pin))


def has_room(stage: PlannedStage, serving: Plan, card: ModelCard) -> bool:
    """Tell whether a machine can load a stage of the next pipeline beside its stage of this one."""
    held = stage_memory(replace(serving, standbys=()), card).get(stage.member.node_id)
    held_bytes = held.planned_bytes if held else 0
    return held_bytes + stage.weight_bytes <= stage.member.machine.memory_usable_bytes


def stuck_at(plan: Plan, vitals: Vitals) -> list[NodeId]:
    """Return where a stuck pipeline has its frames: the machine that holds one back, or both ends of a link.

    The result is empty if no frame is missing. Neighbours' counters are not of the same moment: it is no
    contradiction if one received more than the other has reported to have sent.
    """
    pipeline = [stage.member.node_id for stage in plan.stages]
    coordinator = vitals(pipeline[0], "coordinator")
    upstream, sent = pipeline[0], coordinator.sent if coordinator else 0
    for node_id in pipeline:
        stage = vitals(node_id, "stage")
        if stage is None or stage.received < sent:
            return [node_id] if node_id == upstream else [node_id, upstream]
        if stage.sent < stage.received:
            return [node_id]
        upstream, sent = node_id, stage.sent
    if coordinator and coordinator.received < sent:
        return [pipeline[0]] if pipeline[0] == upstream else [pipeline[0], upstream]
    return []
