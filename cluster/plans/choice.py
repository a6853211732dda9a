"""The best pipeline for a task: its number of stages and steps in flight, its machines and its boundaries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from cluster.models.layer_cost import Precision
from cluster.models.stage_spec import WireFormat
from cluster.plans.candidates import Candidates, Task
from cluster.plans.exact_partitions import MACHINES_MAX, exact_partition
from cluster.plans.forecast import Costs, PipelineForecast, in_flight_choices, links_of
from cluster.plans.partition_search import search_partition
from cluster.plans.partitions import ALONE, Fleet, Partition, best_partition, even
from cluster.plans.planned import Member

# A more even partition may cost this share more than the best one: measurements are no more exact than that.
_SLACK = 0.02
# The extra cost that is acceptable to keep the coordinator, and with it the callers' connections.
_COORDINATOR_SLACK = 0.05
_ORDER_SLACK = 0.005
_USUAL_IN_FLIGHT = 4
# The stages that the search among many machines visits, for each number of steps in flight.
_WORK = 200_000
_WORK_AGAIN = 40_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A pipeline of `candidates`, the fleet by whose numbers it was chosen, and machines that cannot compute."""

    candidates: Candidates
    fleet: Fleet
    partition: Partition
    ends: tuple[int, ...]
    in_flight: int
    kv_tokens: int
    is_alone: bool = False
    refused: tuple[tuple[Member, str], ...] = ()

    @property
    def task(self) -> Task:
        return self.candidates.task

    @property
    def precision(self) -> Precision:
        return self.candidates.precision

    @property
    def pipeline_members(self) -> list[Member]:
        return [self.candidates.members[i] for i in self.partition.order]

    @property
    def seconds_per_token(self) -> float:
        """The predicted time of a token, by the task's goal."""
        return _per_token(self.task, self.fleet, self.partition)

    def forecast(self, wire: WireFormat) -> PipelineForecast:
        """Return the forecast of this pipeline with rows in this format."""
        members = self.pipeline_members
        return PipelineForecast(
            Costs(self.task.card, self.precision, wire),
            [member.machine for member in members],
            [end - begin for begin, end in zip((0, *self.ends[:-1]), self.ends, strict=True)],
            links_of(self.task.network, [member.node_id for member in members]),
        )


def choose_partition(candidates: Candidates, kv_tokens: int) -> Choice | None:
    """Return the best pipeline with this many cached tokens on every stage; None if the layers do not fit."""
    card = candidates.task.card
    if not candidates.members:
        return None
    uneven = len({card.layer_bytes(candidates.precision, layer) for layer in range(card.layers)}) > 1
    for careful in (False, True) if uneven else (False,):
        rooms = candidates.rooms(kv_tokens, careful=careful)
        if sum(min(max(room), card.layers) for room in rooms) < card.layers:
            continue
        choice = _choose(candidates, rooms, kv_tokens)
        if choice and _fits(choice):
            return choice
    return None


def _fits(choice: Choice) -> bool:
    """Tell whether real layers, not average ones, are within every machine's memory."""
    candidates = choice.candidates
    return all(
        candidates.needs(i).stage_bytes(begin, end, choice.kv_tokens) <= candidates.usable_bytes(i)
        for i, begin, end in zip(choice.partition.order, (0, *choice.ends[:-1]), choice.ends, strict=True)
    )


def _choose(candidates: Candidates, rooms: tuple[tuple[int, int, int, int], ...], kv_tokens: int) -> Choice | None:
    task = candidates.task
    if task.stages_min <= 1 and (alone := _alone(candidates, rooms, kv_tokens)):
        return alone
    able = sum(max(room[:ALONE]) > 0 for room in rooms)
    for stages_min in _fewer(min(task.stages_min, able, task.card.layers)):
        best: tuple[float, int, Fleet, Partition] | None = None
        for in_flight in _flights(task):
            fleet = candidates.fleet(rooms, in_flight, stages_min=stages_min)
            partition = _search(fleet, best[3] if best else None)
            if partition and (best is None or _per_token(task, fleet, partition) < best[0] * (1 - 1e-9)):
                best = (_per_token(task, fleet, partition), in_flight, fleet, partition)
        if best:
            _, in_flight, fleet, partition = best
            partition = even(
                fleet, _with_coordinator(candidates, fleet, _in_usual_order(fleet, partition)), _SLACK
            )
            return Choice(candidates, fleet, partition, tuple(accumulate(partition.counts)), in_flight, kv_tokens)
    return None


def _fewer(stages: int) -> Sequence[int]:
    """Return numbers of stages to try, from `stages` down: one by one among few, by large steps among many."""
    if stages <= MACHINES_MAX:
        return range(max(1, stages), 0, -1)
    return [stages, stages * 7 // 8, stages // 2, stages // 4, 1]


def _flights(task: Task) -> list[int]:
    """Return the numbers of steps in flight to try, middling ones first.

    The pipeline found for one number is the start of the search for the next.
    """
    if task.goal == "latency":
        return [0]
    return sorted(in_flight_choices(task.streams), key=lambda in_flight: abs(in_flight - _USUAL_IN_FLIGHT))


def _per_token(task: Task, fleet: Fleet, partition: Partition) -> float:
    return partition.cost_s / task.streams if fleet.in_flight else partition.cost_s


def _search(fleet: Fleet, start: Partition | None) -> Partition | None:
    if fleet.size <= MACHINES_MAX and fleet.owners is None:
        return exact_partition(fleet)
    return search_partition(fleet, start, work=_WORK_AGAIN if start else _WORK)


def _alone(candidates: Candidates, rooms: tuple[tuple[int, int, int, int], ...], kv_tokens: int) -> Choice | None:
    """Return the pipeline of the fastest machine that holds everything alone, or None."""
    task = candidates.task
    best: tuple[float, Fleet, Partition, int] | None = None
    for in_flight in _flights(task):
        fleet = candidates.fleet(rooms, in_flight, stages_min=1)
        for i in range(fleet.size):
            partition = best_partition(fleet, (i,))
            if partition and (best is None or _per_token(task, fleet, partition) < best[0]):
                best = (_per_token(task, fleet, partition), fleet, partition, in_flight)
    if best is None:
        return None
    _, fleet, partition, in_flight = best
    return Choice(candidates, fleet, partition, partition.counts, in_flight, kv_tokens, is_alone=True)


def _in_usual_order(fleet: Fleet, partition: Partition) -> Partition:
    """Return the same machines in their given order if that costs little more, so that plans stay alike."""
    usual = best_partition(fleet, tuple(sorted(partition.order)))
    return usual if usual and usual.cost_s <= partition.cost_s * (1 + _ORDER_SLACK) else partition


def _with_coordinator(candidates: Candidates, fleet: Fleet, partition: Partition) -> Partition:
    """Return the pipeline that begins at the current coordinator if it costs little more."""
    at = next((i for i, m in enumerate(candidates.members) if m.node_id == candidates.task.coordinator), None)
    if at is None or partition.order[0] == at or not partition.cost_s < inf:
        return partition
    partitions = []
    if at in partition.order:
        turn = partition.order.index(at)
        partitions.append(best_partition(fleet, partition.order[turn:] + partition.order[:turn]))
    limit_s = partition.cost_s * (1 + _COORDINATOR_SLACK)
    if not any(turned and turned.cost_s <= limit_s for turned in partitions):
        partitions.append(_search(replace(fleet, first=at), None))
    return min((r for r in partitions if r and r.cost_s <= limit_s), key=lambda r: r.cost_s, default=partition)
