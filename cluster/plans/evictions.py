"""The choice of the deployments to unload so that another one fits: a pure function, which also gives its reason.

It unloads as few as possible. Of equally many it prefers those of the lowest priority, then those that have not been
of use for the longest time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from math import ceil

from msgspec.structs import replace

from cluster.errors import MachineUnknown, ModelDoesNotFit
from cluster.plans.memory_division import Least, MayFit
from cluster.plans.planned import Member
from cluster.trust.identity import NodeId


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A deployment that should be loaded. `model` is its name for callers."""

    name: str
    model: str
    least: Least
    priority: int
    may_fit: MayFit = lambda _: True


@dataclass(frozen=True, slots=True)
class Tenant:
    """A deployment that takes `held` bytes of each machine, or will take what `least` says.

    It answers `running` requests, and stays for `stays_s` more seconds in any case. `of_use_s` is the moment when it
    was last of use.
    """

    name: str
    model: str
    held: Mapping[NodeId, int] | Least
    priority: int
    of_use_s: float = 0.0
    is_pinned: bool = False
    running: int = 0
    stays_s: float = 0.0
    is_moving: bool = False

    @property
    def obstacle(self) -> str:
        """Why it cannot be unloaded now; empty if it can."""
        if self.is_moving:
            return f"{self.model}, which is being stopped or replaced"
        if self.stays_s > 0:
            return f"{self.model}, which stays for at least {ceil(self.stays_s)} s"
        if self.running:
            return f"{self.model}, which answers {self.running} request{'s' if self.running > 1 else ''}"
        return ""

    @property
    def rank(self) -> tuple[bool, int, float, str]:
        """Its order: the lower, the sooner it is unloaded. The third part is in seconds."""
        return bool(self.obstacle), self.priority, self.of_use_s, self.name


@dataclass(frozen=True, slots=True)
class Room:
    """What must happen before a deployment is loaded, and what it will then take of each machine.

    Unload those in `unload` once `wait_for` is empty: those in it must finish first. With an `error` nothing helps.
    With `is_blocked` deployments of a higher priority have the memory, which may be unloaded for other reasons.
    """

    unload: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()
    needs: Mapping[NodeId, int] = field(default_factory=dict)
    reason: str = ""
    error: ModelDoesNotFit | MachineUnknown | None = field(default=None, compare=False)
    is_blocked: bool = False
    # It fits as soon as those that must go for other deployments are gone.
    is_early: bool = False

    @property
    def fits_now(self) -> bool:
        """Tell whether the deployment can be loaded at once."""
        return not (self.unload or self.wait_for or self.error or self.is_blocked or self.is_early)


def make_rooms(
    candidates: Sequence[WantedModel], tenants: Sequence[Tenant], members: Sequence[Member]
) -> list[Room]:
    """Return what must happen before each of the candidates is loaded, in their order: the first one goes first.

    What makes room for one is not there for the next, and none takes what an earlier one waits for.
    """
    now = resolve(tenants, members)
    later = now
    rooms = []
    for candidate in candidates:
        room = make_room(candidate, later, members)
        if room.fits_now and later is not now and _Fitting(candidate, now, members).needs(()) is None:
            room = replace_fields(room, is_early=True, reason="waits until memory is free")
        rooms.append(room)
        if not (room.error or room.is_blocked):
            coming = Tenant(candidate.name, candidate.model, room.needs, candidate.priority, stays_s=1.0)
            later = [tenant for tenant in later if tenant.name not in (*room.unload, *room.wait_for)] + [coming]
            now = [*now, coming] if room.fits_now else now
    return rooms


def resolve(tenants: Sequence[Tenant], members: Sequence[Member]) -> list[Tenant]:
    """Return the tenants with what those take that are not loaded yet. One that does not fit takes nothing."""
    found = [tenant for tenant in tenants if not callable(tenant.held)]
    for tenant in tenants:
        if callable(tenant.held):
            coming = WantedModel(tenant.name, tenant.model, tenant.held, tenant.priority)
            needs = _Fitting(coming, found, members).needs(())
            found.append(replace_fields(tenant, held=needs or {}))
    return found


def make_room(candidate: WantedModel, tenants: Sequence[Tenant], members: Sequence[Member]) -> Room:
    """Return what to unload so that a model fits. `members` come with all memory that deployments may share.

    Pinned tenants and those of a higher priority stay. `resolve` tells what all tenants take.
    """
    priority = candidate.priority
    fitting = _Fitting(candidate, tenants, members)
    if (needs := fitting.needs(())) is not None:
        return Room(needs=needs)
    allowed = sorted(
        (tenant for tenant in tenants if not tenant.is_pinned and tenant.priority <= priority),
        key=lambda tenant: tenant.rank,
    )
    for pool in ([tenant for tenant in allowed if not tenant.obstacle], allowed):
        if (best := fitting.smallest(pool)) is not None:
            chosen, needs = best
            obstacles = [tenant.obstacle for tenant in chosen if tenant.obstacle]
            return Room(
                unload=tuple(tenant.name for tenant in chosen if not tenant.obstacle),
                wait_for=tuple(tenant.name for tenant in chosen if tenant.obstacle),
                needs=needs,
                reason=f"waits for {' and for '.join(obstacles)}"
                if obstacles
                else f"memory for {candidate.model}",
            )
    others = [tenant for tenant in tenants if not tenant.is_pinned]
    if fitting.needs(others) is not None:
        higher = " and ".join(tenant.model for tenant in others if tenant.priority > priority)
        return Room(reason=f"needs memory that models of a higher priority hold: {higher}", is_blocked=True)
    error = fitting.error(allowed)
    return Room(error=error, reason=str(error))


class _Fitting:
    """Tells what a model needs if some tenants are unloaded. More memory never makes a model stop fitting."""

    def __init__(self, candidate: WantedModel, tenants: Sequence[Tenant], members: Sequence[Member]) -> None:
        self._candidate = candidate
        self._members = members
        self._left = {member.node_id: member.machine.memory_usable_bytes for member in members}
        for tenant in tenants:
            for node_id, held_bytes in _held(tenant).items():
                if node_id in self._left:
                    self._left[node_id] -= held_bytes
        self._too_little: list[dict[NodeId, int]] = []

    def needs(self, unloaded: Collection[Tenant]) -> Mapping[NodeId, int] | None:
        """Return what the model then takes of each machine; None if it does not fit."""
        left = self._left_without(unloaded)
        if not self._may_fit(left):
            return None
        try:
            return self._candidate.least(self._usable(left))
        except (ModelDoesNotFit, MachineUnknown):
            self._too_little.append(left)
            return None

    def error(self, unloaded: Collection[Tenant]) -> ModelDoesNotFit | MachineUnknown | None:
        """Return why the model does not fit then."""
        try:
            self._candidate.least(self._usable(self._left_without(unloaded)))
        except (ModelDoesNotFit, MachineUnknown) as error:
            return error
        return None

    def smallest(self, pool: Sequence[Tenant]) -> tuple[tuple[Tenant, ...], Mapping[NodeId, int]] | None:
        """Return the fewest tenants of the pool to unload, and what the model then takes of each machine.

        `pool` begins with those that are unloaded first. Return None if not even all of them help.
        """
        if (needs_of_all := self.needs(pool)) is None:
            return None
        for size in range(1, len(pool)):
            if self._may_help(pool, size):
                for chosen in _by_last(pool, size):
                    if (needs := self.needs(chosen)) is not None:
                        return chosen, needs
        return tuple(pool), needs_of_all

    def _may_help(self, pool: Sequence[Tenant], size: int) -> bool:
        """Tell whether the model may fit if every machine gets the most that `size` tenants hold of it."""
        left = dict(self._left)
        for node_id in left:
            held = sorted((_held(tenant).get(node_id, 0) for tenant in pool), reverse=True)
            left[node_id] += sum(held[:size])
        return self._may_fit(left)

    def _may_fit(self, left: dict[NodeId, int]) -> bool:
        if any(all(left[node_id] <= less[node_id] for node_id in left) for less in self._too_little):
            return False
        return self._candidate.may_fit(self._usable(left))

    def _left_without(self, unloaded: Collection[Tenant]) -> dict[NodeId, int]:
        left = dict(self._left)
        for tenant in unloaded:
            for node_id, held_bytes in _held(tenant).items():
                if node_id in left:
                    left[node_id] += held_bytes
        return left

    def _usable(self, left: Mapping[NodeId, int]) -> tuple[Member, ...]:
        return tuple(
            replace(member, machine=replace(member.machine, memory_usable_bytes=max(0, left[member.node_id])))
            for member in self._members
        )


def _held(tenant: Tenant) -> Mapping[NodeId, int]:
    assert not callable(tenant.held), "tenants must be resolved"
    return tenant.held


def _by_last(pool: Sequence[Tenant], size: int) -> Iterator[tuple[Tenant, ...]]:
    """Yield the subsets of this size. Those whose last tenant comes first in the pool are first."""
    if size == 0:
        yield ()
        return
    for last in range(size - 1, len(pool)):
        for others in _by_last(pool[:last], size - 1):
            yield (*others, pool[last])
