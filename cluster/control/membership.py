"""The present members: admitted, watched by heartbeat, forgotten. No I/O; the clock is passed in."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster import wire
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId

HEARTBEAT_MS = 250
# Six heartbeats: a busy machine skips one or two, a dead one all.
PATIENCE_MS = 1500

_NO_PROCESSES = wire.ProcessReport()


@dataclass(slots=True)
class Membership:
    """The members and their latest heartbeats. `clock` gives monotonic seconds."""

    clock: Callable[[], float]
    _members: dict[NodeId, Member] = field(default_factory=dict)
    _seen_s: dict[NodeId, float] = field(default_factory=dict)
    _signs: dict[NodeId, wire.Heartbeat] = field(default_factory=dict)

    def admit(self, member: Member) -> None:
        self._members[member.node_id] = member
        self._seen_s[member.node_id] = self.clock()

    def beat(self, node_id: NodeId, heartbeat: wire.Heartbeat) -> bool:
        """Take a member's heartbeat and its free memory.

        Return whether the processes of a deployment have just become well again.
        """
        before = self._signs.get(node_id)
        if member := self._members.get(node_id):
            self._signs[node_id] = heartbeat
            if member.machine.device.kind == "cpu":  # The agent does not count a GPU's memory.
                machine = replace(member.machine, memory_usable_bytes=heartbeat.memory_free_bytes)
                self._members[node_id] = replace(member, machine=machine)
            self._seen_s[node_id] = self.clock()
        return member is not None and bool(_silent(before) - _silent(heartbeat))

    def rename(self, node_id: NodeId, name: str) -> None:
        """Change a member's name, if it is here."""
        if member := self._members.get(node_id):
            self._members[node_id] = replace(member, name=name)

    def find(self, node_id: NodeId) -> Member | None:
        return self._members.get(node_id)

    def forget(self, node_id: NodeId) -> Member | None:
        self._seen_s.pop(node_id, None)
        self._signs.pop(node_id, None)
        return self._members.pop(node_id, None)

    def present(self, *deployments: str) -> list[Member]:
        """Return the members in the order of their names, so that the same machines make the same plan.

        Their usable memory is the free memory and what these deployments hold.
        """
        members = [self._as_usable(member, deployments) for member in self._members.values()]
        return sorted(members, key=lambda member: (member.name, member.node_id))

    def _as_usable(self, member: Member, deployments: Collection[str]) -> Member:
        signs = self._signs.get(member.node_id)
        if signs is None or member.machine.device.kind != "cpu":
            return member
        held_bytes = sum(report.held_bytes for name, report in signs.processes.items() if name in deployments)
        most_bytes = max(member.machine.memory_total_bytes, member.machine.memory_usable_bytes)
        usable_bytes = min(most_bytes, member.machine.memory_usable_bytes + held_bytes)
        return replace(member, machine=replace(member.machine, memory_usable_bytes=usable_bytes))

    def vitals(self, deployment: str, node_id: NodeId, role: str) -> wire.Vitals | None:
        """Return a process's progress, by its machine's latest heartbeat."""
        return self._report(node_id, deployment).vitals.get(role)

    def is_well(self, deployment: str, node_id: NodeId) -> bool:
        """Tell whether a machine's idle process and those of the deployment show signs of life."""
        silent = _silent(self._signs.get(node_id))
        return node_id in self._members and not silent & {"", deployment}

    def holds(self, deployment: str) -> bool:
        """Tell whether a machine has processes of the deployment, by its latest heartbeat."""
        return any(deployment in signs.processes for signs in self._signs.values())

    def _report(self, node_id: NodeId, deployment: str) -> wire.ProcessReport:
        signs = self._signs.get(node_id)
        return signs.processes.get(deployment, _NO_PROCESSES) if signs else _NO_PROCESSES

    def forgive(self, pause_s: float) -> None:
        """Extend all deadlines by `pause_s` seconds, in which the cluster's own watch stood still."""
        for node_id in self._seen_s:
            self._seen_s[node_id] += pause_s

    def silent(self) -> list[Member]:
        """Return the members without a heartbeat for longer than PATIENCE_MS."""
        before_s = self.clock() - PATIENCE_MS / 1000
        return [member for node_id, member in self._members.items() if self._seen_s[node_id] < before_s]


def _silent(signs: wire.Heartbeat | None) -> set[str]:
    """Return the deployments with a process that shows no sign of life."""
    return {deployment for deployment, report in signs.processes.items() if report.silent} if signs else set()
