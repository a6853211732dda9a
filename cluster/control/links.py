"""The controller's survey of links: the schedule of measurements, and their results. No I/O."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster import wire
from cluster.machine import Condition
from cluster.plans.machine_warnings import MachineWarning, machine_warnings
from cluster.plans.network import Link, Network, is_plausible
from cluster.plans.planned import Member
from cluster.trust.identity import NodeId

# A newcomer loads and gets a plan first.
SETTLE_S = 3.0
REFRESH_S = 1800.0
RETRY_S = 120.0
# An order without an answer is given up after this.
ANSWER_TIMEOUT_S = 120.0
# In a large cluster machines measure only this many neighbours each, and this many machines at once.
NEIGHBOURS_MAX = 16
_AT_ONCE = 4
# The weight of the newest heartbeat in a machine's clock skew.
_FRESH = 0.2


@dataclass(slots=True)
class _SurveyedMachine:
    """One machine in the survey. `ordered_s` is the time of its current order; None without one."""

    since_s: float
    address: wire.Address | None = None
    condition: Condition | None = None
    ordered_s: float | None = None
    skew_s: float | None = None
    tried_s: dict[NodeId, float] = field(default_factory=dict)


class LinkSurvey:
    """The measured links and conditions. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._machines: dict[NodeId, _SurveyedMachine] = {}
        self._links: dict[tuple[NodeId, NodeId], Link] = {}

    def network(self) -> Network:
        """Return all links that have been measured."""
        return Network(dict(self._links))

    def delay_s(self, one: NodeId, other: NodeId) -> float | None:
        """Return the one-way delay between two machines in seconds, in either direction; None if unmeasured."""
        link = self._links.get((one, other)) or self._links.get((other, one))
        return link.delay_s if link else None

    def take_report(self, node_id: NodeId, host: str, report: wire.LinkReport) -> None:
        """Take a node's report. Its echo server counts as on its own host, so that no node is sent elsewhere."""
        machine = self._machines.setdefault(node_id, _SurveyedMachine(self._clock()))
        machine.condition = report.condition
        machine.address = wire.Address(node_id, host, report.port) if 0 < report.port < 2**16 else None
        if not report.links:
            return
        machine.ordered_s = None
        for measured in report.links[: wire.LINK_PEERS_MAX]:
            # Take only the links that this machine was ordered to measure. It cannot know others.
            if measured.node_id in machine.tried_s and measured.link and is_plausible(measured.link):
                self._links[node_id, measured.node_id] = measured.link

    def take_clock(self, node_id: NodeId, sent_at_s: float, received_at_s: float) -> None:
        """Take a heartbeat's two times: sent, by its machine's clock, and received, by this one's."""
        machine, ahead_s = self._machines.get(node_id), sent_at_s - received_at_s
        if machine and sent_at_s > 0 and math.isfinite(ahead_s):
            before_s = ahead_s if machine.skew_s is None else machine.skew_s
            machine.skew_s = before_s + _FRESH * (ahead_s - before_s)

    def measure_again(self) -> None:
        """Make every link due, however new its figures are. Cables may have changed."""
        for machine in self._machines.values():
            machine.tried_s = dict.fromkeys(machine.tried_s, -math.inf)

    def condition(self, member: Member) -> Condition:
        """Return a machine's condition, by its latest report."""
        machine = self._machines.get(member.node_id)
        return machine.condition if machine and machine.condition else member.machine.condition

    def forget(self, node_id: NodeId) -> None:
        """Forget a machine that is gone. It may come back with another address."""
        self._machines.pop(node_id, None)
        self._links = {pair: link for pair, link in self._links.items() if node_id not in pair}

    def due(self) -> list[tuple[NodeId, wire.MeasureLinks]]:
        """Return the orders to send now.

        Only a few machines measure at a time: bursts would disturb each other.
        """
        now_s = self._clock()
        for machine in self._machines.values():
            if machine.ordered_s is not None and now_s - machine.ordered_s > ANSWER_TIMEOUT_S:
                machine.ordered_s = None
        free = max(1, min(_AT_ONCE, len(self._machines) // 4)) - sum(
            machine.ordered_s is not None for machine in self._machines.values()
        )
        orders: list[tuple[NodeId, wire.MeasureLinks]] = []
        for node_id, machine in self._machines.items():
            if len(orders) >= free:
                break
            if machine.ordered_s is None and machine.address and now_s - machine.since_s >= SETTLE_S:
                peers = self._due_neighbours(node_id, machine, now_s)
                if peers:
                    machine.ordered_s = now_s
                    machine.tried_s.update((peer.node_id, now_s) for peer in peers)
                    orders.append((node_id, wire.MeasureLinks(peers)))
        return orders

    def warnings(self, member: Member) -> tuple[MachineWarning, ...]:
        """Return what is wrong with a machine, by all that is known now."""
        surveyed = self._machines.get(member.node_id)
        machine = replace(member.machine, condition=self.condition(member))
        links = [link for (sender, _), link in self._links.items() if sender == member.node_id]
        return machine_warnings(machine, links, clock_skew_s=(surveyed.skew_s if surveyed else None) or 0.0)

    def _due_neighbours(self, node_id: NodeId, machine: _SurveyedMachine, now_s: float) -> list[wire.Address]:
        """Return the neighbours, in the order of their ids, whose links are unknown or old."""
        others = sorted(
            other for other, neighbour in self._machines.items() if other != node_id and neighbour.address
        )
        behind = [other for other in others if other > node_id]
        neighbours = [*behind, *(other for other in others if other < node_id)][:NEIGHBOURS_MAX]
        addresses = []
        for other in neighbours:
            pause_s = REFRESH_S if (node_id, other) in self._links else RETRY_S
            address = self._machines[other].address
            if address and now_s - machine.tried_s.get(other, -pause_s) >= pause_s:
                addresses.append(address)
        return addresses[: wire.LINK_PEERS_MAX]
