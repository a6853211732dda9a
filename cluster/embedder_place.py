"""Which machine runs the embedding model: a pure function of what is there to a machine with the reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import ModelDoesNotFit
from cluster.identity import NodeId
from cluster.plan import Member

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Place:
    member: Member
    reason: str


def place_embedder(
    name: str,
    needed_bytes: int,
    members: Sequence[Member],
    held_bytes: Mapping[NodeId, int],
    resting: Collection[NodeId] = (),
) -> Place:
    """The machine with the most memory beside the weights that it holds for the cluster; of equals by name.

    `held_bytes` has what of a machine's usable memory is taken by these. Who rests, because it has just failed at
    this, is taken only where no other machine has room. Raises ModelDoesNotFit.
    """
    free = {member.node_id: _free_bytes(member, held_bytes) for member in members}
    able = [member for member in members if free[member.node_id] >= needed_bytes]
    if not able:
        raise ModelDoesNotFit(name, needed_bytes, max(free.values(), default=0))
    ready = [member for member in able if member.node_id not in resting] or able
    chosen = max(sorted(ready, key=lambda member: member.name), key=lambda member: free[member.node_id])
    beside = ", beside the weights of its stage" if held_bytes.get(chosen.node_id) else ""
    reason = (
        f"{chosen.name} embeds with {name}: {free[chosen.node_id] / _GIB:.2f} GiB are usable there{beside}, "
        f"{needed_bytes / _GIB:.2f} GiB are needed"
    )
    others = [member for member in members if member is not chosen]
    if passed_over := [member.name for member in others if member.node_id in resting]:
        reason += f"; {', '.join(sorted(passed_over))} failed at it"
    elif others:
        most = max(free[member.node_id] for member in others)
        reason += f", the others have {most / _GIB:.2f} GiB at most"
    return Place(chosen, reason)


def _free_bytes(member: Member, held_bytes: Mapping[NodeId, int]) -> int:
    return max(0, member.machine.memory_usable_bytes - held_bytes.get(member.node_id, 0))
