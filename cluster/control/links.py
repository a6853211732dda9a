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
class _Place:
    """One machine in the survey. `asked_s` is when its current order was sent, if it has one."""

    since_s: float
    address: wire.Address | None = None
    condition: Condition | None = None
    asked_s: float | None = None
    skew_s: float | None = None
    tried_s: dict[NodeId, float] = field(default_factory=dict)


class LinkSurvey:
    """The measured links and conditions. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._places: dict[NodeId, _Place] = {}
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
        place = self._places.setdefault(node_id, _Place(self._clock()))
        place.condition = report.condition
        place.address = wire.Address(node_id, host, report.port) if 0 < report.port < 2**16 else None
        if not report.links:
            return
        place.asked_s = None
        for measured in report.links[: wire.LINK_PEERS_MAX]:
            # Take only the links that it was asked for; other figures would be rumours.
            if measured.node_id in place.tried_s and measured.link and is_plausible(measured.link):
                self._links[node_id, measured.node_id] = measured.link

    def take_clock(self, node_id: NodeId, sent_at_s: float, received_at_s: float) -> None:
        """Take a heartbeat's two times: sent, by its machine's clock, and received, by this one's."""
        place, ahead_s = self._places.get(node_id), sent_at_s - received_at_s
        if place and sent_at_s > 0 and math.isfinite(ahead_s):
            before_s = ahead_s if place.skew_s is None else place.skew_s
            place.skew_s = before_s + _FRESH * (ahead_s - before_s)

    def measure_again(self) -> None:
        """Make every link due, however new its figures are. Cables may have changed."""
        for place in self._places.values():
            place.tried_s = dict.fromkeys(place.tried_s, -math.inf)

    def condition(self, member: Member) -> Condition:
        """Return a machine's condition, by its latest report."""
        place = self._places.get(member.node_id)
        return place.condition if place and place.condition else member.machine.condition

    def forget(self, node_id: NodeId) -> None:
        """Forget a machine that is gone. It may come back with another address."""
        self._places.pop(node_id, None)
        self._links = {pair: link for pair, link in self._links.items() if node_id not in pair}

    def due(self) -> list[tuple[NodeId, wire.MeasureLinks]]:
        """Return the orders to send now.

        Only a few machines measure at a time: bursts would disturb each other.
        """
        now_s = self._clock()
        for place in self._places.values():
            if place.asked_s is not None and now_s - place.asked_s > ANSWER_TIMEOUT_S:
                place.asked_s = None
        free = max(1, min(_AT_ONCE, len(self._places) // 4)) - sum(
            p.asked_s is not None for p in self._places.values()
        )
        orders: list[tuple[NodeId, wire.MeasureLinks]] = []
        for node_id, place in self._places.items():
            if len(orders) >= free:
                break
            if place.asked_s is None and place.address and now_s - place.since_s >= SETTLE_S:
                peers = self._wanted(node_id, place, now_s)
                if peers:
                    place.asked_s = now_s
                    place.tried_s.update((peer.node_id, now_s) for peer in peers)
                    orders.append((node_id, wire.MeasureLinks(peers)))
        return orders

    def warnings(self, member: Member) -> tuple[MachineWarning, ...]:
        """Return what is wrong with a machine, by all that is known now."""
        place = self._places.get(member.node_id)
        machine = replace(member.machine, condition=self.condition(member))
        links = [link for (sender, _), link in self._links.items() if sender == member.node_id]
        return machine_warnings(machine, links, clock_skew_s=(place.skew_s if place else None) or 0.0)

    def _wanted(self, node_id: NodeId, place: _Place, now_s: float) -> list[wire.Address]:
        """Return the neighbours, in the order of their ids, whose links are unknown or old."""
        others = sorted(other for other, there in self._places.items() if other != node_id and there.address)
        behind = [other for other in others if other > node_id]
        neighbours = [*behind, *(other for other in others if other < node_id)][:NEIGHBOURS_MAX]
        wanted = []
        for other in neighbours:
            pause_s = REFRESH_S if (node_id, other) in self._links else RETRY_S
            address = self._places[other].address
            if address and now_s - place.tried_s.get(other, -pause_s) >= pause_s:
                wanted.append(address)
        return wanted[: wire.LINK_PEERS_MAX]
