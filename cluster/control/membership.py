"""The present members: admitted, watched by heartbeat, forgotten. No I/O; the clock is passed in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster import wire
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId

HEARTBEAT_MS = 250
# Six heartbeats: a busy machine skips one or two, a dead one all.
PATIENCE_MS = 1500


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
        """Take a member's heartbeat and its usable memory.

        Return whether the member has just become well again.
        """
        was_well = self.is_well(node_id)
        memory_usable_bytes = heartbeat.memory_usable_bytes
        if member := self._members.get(node_id):
            self._signs[node_id] = heartbeat
            if member.machine.device.kind == "cpu":  # The agent does not count a GPU's memory.
                machine = replace(member.machine, memory_usable_bytes=memory_usable_bytes)
                self._members[node_id] = replace(member, machine=machine)
            self._seen_s[node_id] = self.clock()
        return not was_well and self.is_well(node_id)

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

    def present(self) -> list[Member]:
        """Return the members in the order of their names, so that the same machines make the same plan."""
        return sorted(self._members.values(), key=lambda member: (member.name, member.node_id))

    def vitals(self, node_id: NodeId, role: str) -> wire.Vitals | None:
        """Return a process's progress, by its machine's latest heartbeat."""
        signs = self._signs.get(node_id)
        return signs.vitals.get(role) if signs else None

    def is_well(self, node_id: NodeId) -> bool:
        """Tell whether all processes of a machine show signs of life."""
        signs = self._signs.get(node_id)
        return node_id in self._members and not (signs and signs.silent)

    def forgive(self, pause_s: float) -> None:
        """Extend all deadlines by `pause_s` seconds, in which the cluster's own watch stood still."""
        for node_id in self._seen_s:
            self._seen_s[node_id] += pause_s

    def silent(self) -> list[Member]:
        """Return the members without a heartbeat for longer than PATIENCE_MS."""
        before_s = self.clock() - PATIENCE_MS / 1000
        return [member for node_id, member in self._members.items() if self._seen_s[node_id] < before_s]
