"""Machines, and the links between them, as tables show them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.control.topology import MachineState, Topology
from cluster.machine import Condition
from cluster.plans.network import Link
from cluster.trust.identity import NodeId
from gateway.console.figures.picture import Picture, Tank, duration, is_slow, rate

_NS_PER_S = 10**9

State = Literal["serving", "draining", "drained", "standby", "spare", "waiting", "away", "removed"]


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A known machine, with its tank and its condition while it is connected. Times in nanoseconds."""

    node_id: NodeId
    name: str
    state: State
    tank: Tank | None
    condition: Condition | None
    joined_ns: int
    certified_until_ns: int
    removed_ns: int
    is_draining: bool
    own_name: str = ""

    @property
    def is_here(self) -> bool:
        return self.tank is not None


def machine_rows(states: Sequence[MachineState], topology: Topology, picture: Picture) -> list[MachineRow]:
    """Return serving machines first, in stage order; removed machines come last."""
    tanks = {tank.node_id: tank for tank in picture.tanks}
    places = {tank.node_id: at for at, tank in enumerate(picture.tanks)}
    rows = [_row(state, tanks.get(state.node_id), topology) for state in states]
    return sorted(rows, key=lambda row: (row.state == "removed", places.get(row.node_id, len(places)), row.name))


def _row(state: MachineState, tank: Tank | None, topology: Topology) -> MachineRow:
    record = state.record
    return MachineRow(
        node_id=state.node_id,
        name=record.name,
        state=_state(state, tank),
        tank=tank,
        condition=topology.conditions.get(state.node_id),
        joined_ns=int(record.joined_s * _NS_PER_S),
        certified_until_ns=int(record.certified_until_s * _NS_PER_S),
        removed_ns=int(record.removed_s * _NS_PER_S),
        is_draining=record.draining,
        own_name=record.own_name,
    )


def _state(state: MachineState, tank: Tank | None) -> State:
    if state.record.removed_s:
        return "removed"
    if tank is None:
        return "away"
    if tank.stage is not None:
        return "draining" if state.record.draining else "serving"
    if state.record.draining:
        return "drained"
    if tank.standby_of:
        return "standby"
    return "waiting" if tank.is_waiting else "spare"


@dataclass(frozen=True, slots=True)
class LinkCell:
    """The link from a row's machine to a column's; None if it was not measured."""

    link: Link | None
    is_self: bool = False

    @property
    def delay(self) -> str:
        return duration(self.link.delay_s) if self.link else ""

    @property
    def jitter(self) -> str:
        return duration(self.link.jitter_s) if self.link else ""

    @property
    def rate(self) -> str:
        return rate(self.link.bytes_per_s) if self.link else ""

    @property
    def is_slow(self) -> bool:
        return self.link is not None and is_slow(self.link)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Links from one machine to each connected machine, in the same order as the rows."""

    node_id: NodeId
    name: str
    cells: tuple[LinkCell, ...]


def link_matrix(topology: Topology) -> list[LinkRow]:
    """Return every measured link between connected machines, in both directions."""
    links = topology.network.links
    return [
        LinkRow(
            one.node_id,
            one.name,
            tuple(
                LinkCell(links.get((one.node_id, other.node_id)), is_self=one is other)
                for other in topology.members
            ),
        )
        for one in topology.members
    ]
