"""The choice of the machine for the embedding model: a pure function, which also gives its reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import ModelDoesNotFit
from cluster.models.model_card import ModelCard
from cluster.plans.needs import BLOCK_TOKENS, context_room, read_needs
from cluster.plans.planned import Member, Plan
from cluster.trust.identity import NodeId

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The usable memory of a machine that stages take: with the whole planned cache, and with one context's."""

    planned_bytes: int
    least_bytes: int


@dataclass(frozen=True, slots=True)
class EmbedderPlacement:
    """The machine that embeds, and why it was chosen."""

    member: Member
    reason: str


def stage_memory(plan: Plan, card: ModelCard) -> dict[NodeId, StageMemory]:
    """Return the memory that a plan takes on each of its machines.

    It is the weights of all stages on a machine, plus the cache and activation memory of one of them.
    """
    stages = [*plan.stages, *plan.standbys]
    members = {stage.member.node_id: stage.member for stage in stages}
    held = {}
    for node_id, member in members.items():
        own = [stage for stage in stages if stage.member.node_id == node_id]
        kind = member.machine.device.kind
        needs = read_needs(card, plan.precision, plan.slots, kind, plan.context_tokens)
        weight_bytes = sum(stage.weight_bytes for stage in own)
        room_bytes = [
            max(
                needs.stage_bytes(stage.spec.first_layer, stage.spec.end_layer, tokens)
                - needs.weight_bytes(stage.spec.first_layer, stage.spec.end_layer)
                for stage in own
            )
            for tokens in (plan.kv_blocks * BLOCK_TOKENS, context_room(plan.context_tokens))
        ]
        held[node_id] = StageMemory(weight_bytes + room_bytes[0], weight_bytes + room_bytes[1])
    return held


def place_embedder(
    name: str,
    needed_bytes: int,
    members: Sequence[Member],
    held: Mapping[NodeId, StageMemory],
    resting: Collection[NodeId] = (),
    owners: Collection[NodeId] | None = None,
) -> EmbedderPlacement:
    """Return the machine with the most memory beside what the cluster's model takes; the first by name if equal.

    Plans give the cache all remaining memory. If no machine has room beside that, choose one with room beside the
    weights and one context's cache. `resting` machines have just failed to load it; they are used only if no other
    machine has room. With `owners` no other machine may see the texts. Raise ModelDoesNotFit.
    """
    allowed = [member for member in members if owners is None or member.node_id in owners]
    beside_all = {member.node_id: _free_bytes(member, held, least=False) for member in allowed}
    beside_least = {member.node_id: _free_bytes(member, held, least=True) for member in allowed}
    is_tight = max(beside_all.values(), default=0) < needed_bytes
    free = beside_least if is_tight else beside_all
    able = [member for member in allowed if free[member.node_id] >= needed_bytes]
    if not able:
        raise _too_large(name, needed_bytes, max(free.values(), default=0), owners)
    ready = [member for member in able if member.node_id not in resting] or able
    chosen = max(sorted(ready, key=lambda member: member.name), key=lambda member: free[member.node_id])
    beside = ", beside its stage" if chosen.node_id in held else ""
    reason = (
        f"{chosen.name} embeds with {name}: {free[chosen.node_id] / _GIB:.2f} GiB are usable there{beside}, "
        f"{needed_bytes / _GIB:.2f} GiB are needed"
    )
    if is_tight:
        reason += "; no machine has that beside the planned cache, which cannot be filled there now"
    others = [member for member in allowed if member is not chosen]
    if passed_over := [member.name for member in others if member.node_id in resting]:
        reason += f"; {', '.join(sorted(passed_over))} failed at it"
    elif others:
        most = max(free[member.node_id] for member in others)
        reason += f", the others have {most / _GIB:.2f} GiB at most"
    if owners is not None:
        reason += "; cluster.owners lets no other machines see texts"
    return EmbedderPlacement(chosen, reason)


def _too_large(
    name: str, needed_bytes: int, usable_bytes: int, owners: Collection[NodeId] | None
) -> ModelDoesNotFit:
    if owners is None:
        return ModelDoesNotFit(name, needed_bytes, usable_bytes)
    remedy = "add a machine to cluster.owners, free memory on those machines, or choose a smaller model"
    return ModelDoesNotFit(f"{name} on machines of cluster.owners", needed_bytes, usable_bytes, remedy)


def _free_bytes(member: Member, held: Mapping[NodeId, StageMemory], *, least: bool) -> int:
    taken = held.get(member.node_id, StageMemory(0, 0))
    return max(0, member.machine.memory_usable_bytes - (taken.least_bytes if least else taken.planned_bytes))
