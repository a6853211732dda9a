"""The search's view of a fleet: machines, links and a model as numbers for steps of one size."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.models.layer_cost import Precision
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import WireFormat
from cluster.plans.forecast import COORDINATOR_STEP_S, STAGE_STEP_S, Costs, Step
from cluster.plans.needs import Needs, read_needs
from cluster.plans.network import Network
from cluster.plans.partitions import Fleet
from cluster.plans.planned import Goal, Member, Pin
from cluster.trust.identity import NodeId


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments of `plan_stages`."""

    name: str
    card: ModelCard
    members: tuple[Member, ...]
    network: Network
    goal: Goal
    streams: int
    slots: int
    context_tokens: int
    """The longest context in tokens that the pipeline must hold; `context_requested` is the requested one."""
    context_requested: int
    stages_min: int
    pin: Pin | None
    coordinator: NodeId | None


class Candidates:
    """The machines that can compute in one precision, with what the search needs to know of them."""

    def __init__(self, task: Task, members: Sequence[Member], precision: Precision) -> None:
        self.task = task
        self.members = tuple(members)
        self.precision = precision
        self.costs = Costs(task.card, precision, plain_wire(precision))
        by_kind = {
            kind: read_needs(task.card, precision, task.slots, kind, task.context_tokens)
            for kind in {member.machine.device.kind for member in members}
        }
        self._needs = [by_kind[member.machine.device.kind] for member in self.members]
        ids = [member.node_id for member in self.members]
        self._links = [[task.network.link(a, b) for b in ids] for a in ids]

    def needs(self, at: int) -> Needs:
        return self._needs[at]

    def usable_bytes(self, at: int) -> int:
        return max(0, self.members[at].machine.memory_usable_bytes)

    def rooms(self, kv_tokens: int, *, careful: bool = False) -> tuple[tuple[int, int, int, int], ...]:
        """Return the number of layers that fit on each machine, by role."""
        return tuple(
            needs.rooms(self.usable_bytes(at), kv_tokens, careful=careful) for at, needs in enumerate(self._needs)
        )

    def fleet(self, rooms: tuple[tuple[int, int, int, int], ...], in_flight: int, *, stages_min: int) -> Fleet:
        """Return the numbers for `in_flight` steps at once; 0 counts only one stream's time."""
        task, costs = self.task, self.costs
        step = Step(-(-task.streams // in_flight) if in_flight else 1)
        machines = [member.machine for member in self.members]
        pin = task.pin
        return Fleet(
            layers=task.card.layers,
            layer_s=tuple(costs.layer_s(machine, step) for machine in machines),
            stage_s=(STAGE_STEP_S,) * len(machines),
            last_s=tuple(costs.logits_s(machine, step) for machine in machines),
            rooms=rooms,
            hop_s=tuple(tuple(costs.hop_s(link, step) for link in row) for row in self._links),
            back_s=tuple(tuple(costs.back_s(link, step) for link in row) for row in self._links),
            link_s=tuple(tuple(costs.link_busy_s(link, step) for link in row) for row in self._links),
            coordinator_s=COORDINATOR_STEP_S,
            in_flight=in_flight,
            stages_min=stages_min,
            owners=frozenset(i for i, m in enumerate(self.members) if m.node_id in pin.owners) if pin else None,
            owned_first=pin.first_layers if pin else 0,
            owned_last=pin.last_layers if pin else 0,
        )


def plain_wire(precision: Precision) -> WireFormat:
    """Return the format of uncompressed rows on links."""
    if precision in ("fp32", "fp16"):
        return precision
    return "bf16"
