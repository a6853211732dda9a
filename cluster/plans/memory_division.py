"""The division of the machines' memory between deployments: a pure function, which also gives its reason.

Each deployment first gets the least that it can work with, those that serve before the others, then in their order.
What is left of a machine is divided evenly between those that fit and have a KV cache.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cluster.errors import MachineUnknown, ModelDoesNotFit
from cluster.plans.needs import StageMemory
from cluster.plans.planned import Member
from cluster.trust.identity import NodeId

_GIB = 2**30
# Free memory changes all the time: a plan may exceed its share by this much.
_SLACK_BYTES = 2**29
_SLACK = 1.1

Least = Callable[[Sequence[Member]], Mapping[NodeId, int]]
"""(machines, with what is left of their memory) -> bytes that a deployment needs of each.

Raises ModelDoesNotFit or MachineUnknown.
"""


MayFit = Callable[[Sequence[Member]], bool]
"""A quick check: False says for certain that Least raises ModelDoesNotFit for these machines."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A deployment's need of memory: what it takes of each machine if it serves, and how to find its least need."""

    deployment: str
    model: str
    least: Least
    serving: Mapping[NodeId, StageMemory] | None = None
    has_cache: bool = True
    may_fit: MayFit = lambda _: True


@dataclass(frozen=True, slots=True)
class Share:
    """The machines with the memory in bytes that one deployment may use of them, and the reason in words."""

    members: tuple[Member, ...]
    reason: str = ""

    def allows(self, planned: Mapping[NodeId, StageMemory]) -> bool:
        """Tell whether a plan's memory is within the share, as far as can be said."""
        usable = {member.node_id: member.machine.memory_usable_bytes for member in self.members}
        return all(
            memory.planned_bytes <= usable[node_id] * _SLACK + _SLACK_BYTES
            for node_id, memory in planned.items()
            if node_id in usable
        )


def divide_memory(
    deployment: str, claims: Sequence[Claim], members: Sequence[Member], *, as_serving: bool = False
) -> Share:
    """Return what one of the deployments may use. `members` come with all memory that deployments may share.

    `claims` are in the order of priority. `as_serving` keeps the deployment on the machines where it serves. Raise
    ModelDoesNotFit, with the others' names, if it does not fit beside them; raise MachineUnknown for its owners.
    """
    own = next(claim for claim in claims if claim.deployment == deployment)
    others = [claim for claim in claims if claim is not own]
    if not others:
        return Share(tuple(members))
    left = {member.node_id: member.machine.memory_usable_bytes for member in members}
    own_bytes: Mapping[NodeId, int] = {}
    sharers = 0
    for claim in sorted(claims, key=lambda claim: claim.serving is None or (claim is own and not as_serving)):
        if claim.serving is not None and (as_serving or claim is not own):
            least = {node_id: memory.least_bytes for node_id, memory in claim.serving.items()}
        else:
            try:
                least = dict(claim.least(_with_memory(members, left)))
            except (ModelDoesNotFit, MachineUnknown) as error:
                if claim is not own:
                    continue
                raise _beside(error, others) if isinstance(error, ModelDoesNotFit) else error from None
        if claim is own:
            own_bytes = least
        sharers += claim.has_cache
        for node_id in left:
            left[node_id] -= least.get(node_id, 0)
    usable = {
        node_id: own_bytes.get(node_id, 0) + max(0, rest) // max(1, sharers) for node_id, rest in left.items()
    }
    return Share(_with_memory(members, usable), _reason(own, others, members, usable))


def memory_of_others(
    deployment: str, claims: Sequence[Claim], members: Sequence[Member]
) -> dict[NodeId, StageMemory]:
    """Return what the other deployments take of each machine, for one without a KV cache.

    It avoids what models for prompts need that do not serve yet, but these make room for it if it must be there.
    """
    own = next(at for at, claim in enumerate(claims) if claim.deployment == deployment)
    others = [*claims[:own], *claims[own + 1 :]]
    held: dict[NodeId, StageMemory] = {}
    for claim in others:
        _add(held, claim.serving or {})
    for claim in others:
        if claim.serving is None and (claim.has_cache or claim in claims[:own]):
            left = {member.node_id: member.machine.memory_usable_bytes for member in members}
            for node_id in left.keys() & held.keys():
                left[node_id] -= held[node_id].least_bytes
            with contextlib.suppress(ModelDoesNotFit, MachineUnknown):
                least = claim.least(_with_memory(members, left))
                _add(
                    held,
                    {
                        node_id: StageMemory(amount_bytes, 0 if claim.has_cache else amount_bytes)
                        for node_id, amount_bytes in least.items()
                    },
                )
    return held


def _add(held: dict[NodeId, StageMemory], taken: Mapping[NodeId, StageMemory]) -> None:
    for node_id, memory in taken.items():
        held[node_id] = memory + held[node_id] if node_id in held else memory


def _with_memory(members: Sequence[Member], usable: Mapping[NodeId, int]) -> tuple[Member, ...]:
    return tuple(
        replace(member, machine=replace(member.machine, memory_usable_bytes=max(0, usable[member.node_id])))
        for member in members
    )


def _beside(error: ModelDoesNotFit, others: Sequence[Claim]) -> ModelDoesNotFit:
    """Return the error with the names of the deployments that take the rest of the memory."""
    return ModelDoesNotFit(
        error.model, error.needed_bytes, error.usable_bytes, error.remedy, beside=_names(others)
    )


def _names(others: Sequence[Claim]) -> str:
    return " and ".join(claim.model for claim in others)


def _reason(own: Claim, others: Sequence[Claim], members: Sequence[Member], usable: Mapping[NodeId, int]) -> str:
    shares = [
        f"{usable[member.node_id] / _GIB:.2f} of {member.machine.memory_usable_bytes / _GIB:.2f} GiB on {member.name}"
        for member in members
        if usable[member.node_id] < member.machine.memory_usable_bytes
    ]
    if not shares:
        return ""
    return f"memory is divided with {_names(others)}: {own.model} may use {', '.join(shares)}"
