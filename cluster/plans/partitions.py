"""The best partition of a model's layers over machines in a given order, and the cost of a pipeline.

Costs are seconds for steps of one size (`Fleet`). T is the time of one round trip through the pipeline, and p the
time of its bottleneck, the slowest stage or link. m steps in flight finish every max(T, m * p); for one stream
alone, T itself counts. The fastest machines are filled first, each up to its memory and to the time J / m. This
decides exactly whether some partition costs at most J. Halving the interval between two answers finds the best J.
Layers count as equal here, each as large as the model's average one. If they are not, `plans.choice` checks the
real sizes and, if necessary, counts every layer as large as the largest one.
"""

import itertools
from dataclasses import dataclass
from math import inf

MIDDLE, FIRST, LAST, ALONE = range(4)
"""Roles by which a machine's room differs: the first and last stage also hold embedding and logits weights."""

_HALVINGS = 48


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines and links as the search sees them, by number. Every time is that of one step, in seconds."""

    layers: int
    layer_s: tuple[float, ...]
    stage_s: tuple[float, ...]
    last_s: tuple[float, ...]
    rooms: tuple[tuple[int, int, int, int], ...]
    """Number of layers that fit in memory, by role."""
    hop_s: tuple[tuple[float, ...], ...]
    """Seconds until a step's rows have gone from one machine to another."""
    back_s: tuple[tuple[float, ...], ...]
    """Seconds from the last machine to the coordinator beside the first stage. Only tokens travel, no rows."""
    link_s: tuple[tuple[float, ...], ...]
    """Seconds for which a step's rows keep a link busy."""
    coordinator_s: float = 0.0
    in_flight: int = 0
    """Number of steps under way at once; 0 if only one stream's time counts."""
    stages_min: int = 1
    stages_max: int = 2**31
    first: int | None = None
    """The machine that must be first, if any."""
    owners: frozenset[int] | None = None
    """The only machines that may hold the first `owned_first` and the last `owned_last` layers."""
    owned_first: int = 0
    owned_last: int = 0

    @property
    def size(self) -> int:
        """The number of machines."""
        return len(self.layer_s)


@dataclass(frozen=True, slots=True)
class Partition:
    """Machines in order, the number of layers on each, and the cost of the pipeline in seconds."""

    order: tuple[int, ...]
    counts: tuple[int, ...]
    cost_s: float


def round_s(fleet: Fleet, order: tuple[int, ...]) -> float:
    """Return one step's round trip without the layers, in seconds: stages, logits, hops and coordinator."""
    hops = fleet.back_s[order[-1]][order[0]] if len(order) > 1 else 0.0
    for sender, receiver in itertools.pairwise(order):
        hops += fleet.hop_s[sender][receiver]
    return fleet.coordinator_s + hops + sum(fleet.stage_s[i] for i in order) + fleet.last_s[order[-1]]


def link_pace_s(fleet: Fleet, order: tuple[int, ...]) -> float:
    """Return the busiest link's time per step, in seconds."""
    return max((fleet.link_s[i][j] for i, j in itertools.pairwise(order)), default=0.0)


def stage_seconds(fleet: Fleet, order: tuple[int, ...], counts: tuple[int, ...]) -> list[float]:
    """Return each stage's time per step, in seconds."""
    seconds = [fleet.stage_s[i] + k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True)]
    seconds[-1] += fleet.last_s[order[-1]]
    return seconds


def cost_s(fleet: Fleet, order: tuple[int, ...], counts: tuple[int, ...]) -> float:
    """Return a pipeline's cost in seconds: T for one stream, otherwise max(T, m * p)."""
    layers = sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    around = round_s(fleet, order) + layers
    pace = max(*stage_seconds(fleet, order, counts), link_pace_s(fleet, order))
    return max(around, fleet.in_flight * pace)


def caps(fleet: Fleet, order: tuple[int, ...], pace_s: float = inf) -> list[int]:
    """Return how many layers each stage may hold: within memory, and within `pace_s` for a step."""
    stages = len(order)
    roles = [ALONE] if stages == 1 else [FIRST, *([MIDDLE] * (stages - 2)), LAST]
    limits = [fleet.rooms[i][role] for i, role in zip(order, roles, strict=True)]
    if pace_s == inf:
        return limits
    for at, i in enumerate(order):
        spare = pace_s - fleet.stage_s[i] - (fleet.last_s[i] if at == stages - 1 else 0.0)
        # A billionth more, so that a time computed from a partition allows this same partition.
        allowed = int(spare / fleet.layer_s[i] + 1e-9) if spare > 0 else 0
        limits[at] = min(limits[at], allowed)
    return limits


def fill(fleet: Fleet, order: tuple[int, ...], limits: list[int]) -> list[int] | None:
    """Return the fastest distribution of layers over the stages, or None if they do not fit.

    Each stage gets at least one layer and at most its limit.
    """
    counts = [1] * len(order)
    left = fleet.layers - len(order)
    if left < 0 or min(limits) < 1 or not _is_owned(fleet, order):
        return None
    fastest = sorted(range(len(order)), key=lambda at: fleet.layer_s[order[at]])
    if fleet.owners is not None:
        # The owners must hold all layers of the ends before speed alone decides.
        others = [at for at, i in enumerate(order) if i not in fleet.owners]
        if others:
            ends = ((range(others[0]), fleet.owned_first), (range(others[-1] + 1, len(order)), fleet.owned_last))
            for group, needed in ends:
                missing = _serve(counts, limits, [at for at in fastest if at in group], needed - len(group))
                if missing > 0:
                    return None
    left = fleet.layers - sum(counts)
    if left < 0 or _serve(counts, limits, fastest, left) > 0:
        return None
    return counts


def _serve(counts: list[int], limits: list[int], fastest: list[int], left: int) -> int:
    """Hand out `left` more layers in this order. Return how many did not fit."""
    for at in fastest:
        if left <= 0:
            break
        more = min(limits[at] - counts[at], left)
        if more > 0:
            counts[at] += more
            left -= more
    return left


def _is_owned(fleet: Fleet, order: tuple[int, ...]) -> bool:
    return fleet.owners is None or (order[0] in fleet.owners and order[-1] in fleet.owners)


def partition_within(fleet: Fleet, order: tuple[int, ...], limit_s: float, around_s: float) -> list[int] | None:
    """Return a partition over this order that costs at most `limit_s`, or None. `around_s` is `round_s` of it."""
    pace_s = limit_s / fleet.in_flight if fleet.in_flight else inf
    counts = fill(fleet, order, caps(fleet, order, pace_s))
    if counts is None:
        return None
    layers_s = sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    return counts if around_s + layers_s <= limit_s else None


def best_partition(fleet: Fleet, order: tuple[int, ...], halvings: int = _HALVINGS) -> Partition | None:
    """Return the cheapest partition over this order, links included; None if the layers do not fit."""
    counts = fill(fleet, order, caps(fleet, order))
    if counts is None:
        return None
    around_s = round_s(fleet, order)
    low = around_s + sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    high = max(low, fleet.in_flight * max(stage_seconds(fleet, order, tuple(counts))))
    if high > low:  # The cost cannot be less than T: this is the fastest partition.
        if better := partition_within(fleet, order, low * (1 + 1e-12), around_s):
            counts, high = better, low
        for _ in range(halvings):
            if high - low <= high * 1e-9:
                break
            middle = (low + high) / 2
            if better := partition_within(fleet, order, middle, around_s):
                counts, high = better, middle
            else:
                low = middle
    layers = tuple(counts)
    return Partition(order, layers, cost_s(fleet, order, layers))


def even(fleet: Fleet, partition: Partition, slack: float) -> Partition:
    """Return the partition with the least bottleneck that costs at most the share `slack` more than `partition`.

    It keeps the machines and their order. Of two plans of equal cost, the more even one serves more streams
    better.
    """
    limit_s = partition.cost_s * (1 + slack)
    around_s = round_s(fleet, partition.order)
    counts = partition.counts
    low, high = 0.0, max(stage_seconds(fleet, partition.order, partition.counts))
    for _ in range(_HALVINGS):
        if high - low <= high * 1e-6:
            break
        middle = (low + high) / 2
        candidate = fill(fleet, partition.order, caps(fleet, partition.order, middle))
        layers_s = (
            sum(k * fleet.layer_s[i] for i, k in zip(partition.order, candidate, strict=True))
            if candidate
            else inf
        )
        if candidate and around_s + layers_s <= limit_s:
            counts, high = tuple(candidate), middle
        else:
            low = middle
    return Partition(partition.order, counts, cost_s(fleet, partition.order, counts))
