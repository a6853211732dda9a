"""The choice of the machine for the embedding model: a pure function, which also gives its reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import ModelDoesNotFit
from cluster.plans.needs import StageMemory
from cluster.plans.planned import Member
from cluster.trust.identity import NodeId

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class EmbedderPlacement:
    """The machine that embeds, and why it was chosen."""

    member: Member
    reason: str


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
