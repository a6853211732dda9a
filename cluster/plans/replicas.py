"""The standbys: machines outside the pipeline that also hold a stage, so that losing one costs no loading."""

from collections.abc import Sequence

from cluster.plans.candidates import Candidates
from cluster.plans.needs import BLOCK_TOKENS
from cluster.plans.planned import Member, Pin, Plan, PlannedStage
from cluster.plans.speeds import why_not
from cluster.trust.identity import NodeId

# The most copies that one machine keeps loaded.
STANDBYS_MAX = 8
COPIES_MAX = 2


def place_standbys(
    candidates: Candidates, stages: Sequence[PlannedStage], pin: Pin | None
) -> tuple[PlannedStage, ...]:
    """Return copies of stages for machines outside the pipeline, up to COPIES_MAX of each as memory allows.

    Every stage gets a copy before one gets a second. The largest come first, since they take longest to load
    again. A machine serves one stage at a time: it needs the weights of all its copies, but working memory for
    only one.
    """
    partition = {stage.member.node_id for stage in stages}
    spares = [i for i, member in enumerate(candidates.members) if member.node_id not in partition]
    spares = [i for i in spares if not why_not(candidates.members[i].machine.pace, candidates.precision)]
    held: dict[int, list[int]] = {i: [] for i in spares}
    placed: list[PlannedStage] = []
    largest_first = sorted(range(len(stages)), key=lambda index: (-stages[index].weight_bytes, index))
    for index in [index for _ in range(COPIES_MAX) for index in largest_first]:
        by_room = sorted(spares, key=lambda i: (len(held[i]), -candidates.usable_bytes(i), i))
        able = (i for i in by_room if _may_hold(candidates, stages, pin, i, held[i], index))
        if (chosen := next(able, None)) is not None:
            held[chosen].append(index)
            placed.append(_copy(stages[index], candidates.members[chosen]))
    return tuple(placed)


def _copy(stage: PlannedStage, member: Member) -> PlannedStage:
    reason = (
        f"{member.name} holds a copy of stage {stage.spec.index} of {stage.member.name}, "
        f"{stage.weight_bytes / 2**20:.0f} MiB: it takes over if that machine is lost"
    )
    return PlannedStage(member, stage.spec, stage.weight_bytes, reason)


def _may_hold(
    candidates: Candidates, stages: Sequence[PlannedStage], pin: Pin | None, i: int, held: list[int], index: int
) -> bool:
    if index in held or len(held) >= STANDBYS_MAX:
        return False
    if pin and candidates.members[i].node_id not in pin.owners and not _is_for_third_parties(stages, index, pin):
        return False
    needs, specs = candidates.needs(i), [stages[at].spec for at in (*held, index)]
    weights = [needs.weight_bytes(spec.first_layer, spec.end_layer) for spec in specs]
    kv_tokens = stages[index].spec.kv_blocks * BLOCK_TOKENS
    serving = [needs.stage_bytes(spec.first_layer, spec.end_layer, kv_tokens) for spec in specs]
    others = max(whole - own for whole, own in zip(serving, weights, strict=True))
    return sum(weights) + others <= candidates.usable_bytes(i)


def _is_for_third_parties(stages: Sequence[PlannedStage], index: int, pin: Pin) -> bool:
    """Tell whether a stage holds neither an end of the model nor any of the owners' layers."""
    spec = stages[index].spec
    last_open = stages[-1].spec.end_layer - pin.last_layers
    return (
        index not in (0, len(stages) - 1) and pin.first_layers <= spec.first_layer and spec.end_layer <= last_open
    )


def with_standby(plan: Plan, lost: NodeId, ready: frozenset[tuple[NodeId, int]] | None = None) -> Plan | None:
    """Return the same plan with a standby in the lost machine's place; None if its stage has none.

    `ready` says which (machine, stage index) have really loaded their copy; without it all count.
    """
    index = next((stage.spec.index for stage in plan.stages if stage.member.node_id == lost), None)
    if index is None:
        return None
    standby = next(
        (
            copy
            for copy in plan.standbys
            if copy.spec.index == index
            and copy.member.node_id not in (lost, *plan.pipeline)
            and (ready is None or (copy.member.node_id, index) in ready)
        ),
        None,
    )
    if standby is None:
        return None
    taken = standby.member.node_id
    stages = tuple(standby if stage.spec.index == index else stage for stage in plan.stages)
    left = tuple(copy for copy in plan.standbys if copy.member.node_id not in (taken, lost))
    name = next(stage.member.name for stage in plan.stages if stage.member.node_id == lost)
    return Plan(
        stages=stages,
        precision=plan.precision,
        kv_blocks=plan.kv_blocks,
        slots=plan.slots,
        reasons=(f"{standby.member.name} takes over stage {index} of {name}, which is lost", *plan.reasons),
        standbys=left,
        predicted=None,
        goal=plan.goal,
        stages_min=plan.stages_min,
        considered=tuple(node_id for node_id in plan.considered if node_id != lost),
    )
