"""A good pipeline out of many machines: grow one from the best seeds, then improve it move by move.

This is local search, as for tours (Lin and Kernighan, 1973). It inserts, removes, replaces, moves and
swaps machines as long as the pipeline gets cheaper. The work is counted and bounded, not timed, so that the same
machines make the same plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from cluster.plans.partitions import (
    ALONE,
    FIRST,
    LAST,
    MIDDLE,
    Fleet,
    Partition,
    best_partition,
    caps,
    cost_s,
    fill,
    link_pace_s,
    partition_within,
    round_s,
)

_SEEDS = 6
_LONG = 16
# Fewer halvings than for a final answer: the search only compares pipelines.
_HALVINGS = 14
_GAIN_MIN = 1e-6


@dataclass(slots=True)
class _Budget:
    """The stages that the search may still visit."""

    left: int

    def spend(self, stages: int) -> bool:
        self.left -= stages
        return self.left > 0


def search_partition(fleet: Fleet, start: Partition | None = None, work: int = 400_000) -> Partition | None:
    """Return the best pipeline found, or None. `start` is one to improve, `work` the number of stages to visit."""
    best: Partition | None = None
    orders = [start.order] if start else _grown(fleet)
    budget = _Budget(work)
    for number, order in enumerate(orders):
        partition = best_partition(fleet, order, _HALVINGS)
        if partition:
            # Half of the work is for kicks. The next seeds share the work that one seed leaves.
            share = _Budget((budget.left - work // 2) // (len(orders) - number))
            before = share.left
            partition = _improved(fleet, partition, share)
            budget.spend(before - share.left)
            best = _cheaper(best, partition)
    if best is None:
        return None
    best = _kicked(fleet, best, budget)
    return best_partition(fleet, best.order)


def _cheaper(one: Partition | None, other: Partition) -> Partition:
    return other if one is None or other.cost_s < one.cost_s * (1 - _GAIN_MIN) else one


def _kicked(fleet: Fleet, best: Partition, budget: _Budget) -> Partition:
    """Leave a local optimum by a move that does not pay by itself, and look for better pipelines behind it."""
    seen = {best.order}
    while budget.left > 0:
        for order in _kicks(fleet, best.order):
            if budget.left <= 0:
                return best
            if order in seen:
                continue
            seen.add(order)
            if partition := best_partition(fleet, order, _HALVINGS):
                partition = _improved(fleet, partition, budget)
                if partition.cost_s < best.cost_s * (1 - _GAIN_MIN):
                    best = partition
                    break
        else:
            return best
    return best


def _kicks(fleet: Fleet, order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return pipelines one or two moves away that the improving moves would not take."""
    stages, pinned = len(order), 1 if fleet.first is not None else 0
    for first in _neighbours(fleet, order):
        if len(first) != stages:
            yield first
    for a in range(pinned, stages):
        for b in range(a + 1, stages):
            rest = order[:a] + order[a + 1 : b] + order[b + 1 :]
            if len(rest) >= max(1, fleet.stages_min):
                yield rest
            yield (*order[:a], order[b], *order[a + 1 : b], order[a], *order[b + 1 :])
    for at in range(pinned, stages):
        rest = order[:at] + order[at + 1 :]
        outside = [i for i in range(fleet.size) if i not in order and max(fleet.rooms[i]) > 0]
        for i in sorted(outside, key=lambda i: _price(fleet, i, 0.0))[:_SEEDS]:
            yield from ((*rest[:place], i, *rest[place:]) for place in range(pinned, stages))


def _grown(fleet: Fleet) -> list[tuple[int, ...]]:
    """Return pipelines that hold all layers, each grown from another of the most promising machines.

    Some are grown without the busiest links, because a single such link can be the bottleneck of the whole
    pipeline.
    """
    starts = [fleet.first] if fleet.first is not None else _seeds(fleet)
    if fleet.stages_min > _LONG:  # Nearly all machines take part, so the start matters little.
        starts = starts[:1]
    partitions = []
    for busy_s in _busy_limits(fleet):
        calm = _without_busier(fleet, busy_s)
        for start in starts:
            partition = _grow(calm, start)
            if partition and partition not in partitions:
                partitions.append(partition)
    if not partitions and (partition := _roomiest(fleet)):
        partitions.append(partition)
    return partitions


def _roomiest(fleet: Fleet) -> tuple[int, ...] | None:
    """Return the machines that hold the most layers, with the ends where they cost the fewest; None if too few."""
    stages = min(fleet.stages_max, fleet.layers, fleet.size)
    widest = sorted(range(fleet.size), key=lambda i: -max(fleet.rooms[i][:ALONE]))[:stages]
    widest = [i for i in widest if max(fleet.rooms[i][:ALONE]) > 0]
    if fleet.first is not None and fleet.first not in widest:
        widest = [fleet.first, *widest[: stages - 1]]
    ends = [
        (fleet.rooms[a][MIDDLE] + fleet.rooms[b][MIDDLE] - fleet.rooms[a][FIRST] - fleet.rooms[b][LAST], a, b)
        for a in widest
        for b in widest
        if a != b and fleet.rooms[a][FIRST] > 0 and fleet.rooms[b][LAST] > 0 and fleet.first in (None, a)
    ]
    if not ends:
        return None
    _, first, last = min(ends)
    order = (first, *(i for i in widest if i not in (first, last) and fleet.rooms[i][MIDDLE] > 0), last)
    return order if len(order) >= fleet.stages_min and _fits(fleet, order) else None


def _busy_limits(fleet: Fleet) -> list[float]:
    """Return limits that exclude no link, then those above the third, second and first quarter of all."""
    if not fleet.in_flight:
        return [inf]
    busy = sorted({busy_s for row in fleet.link_s for busy_s in row})
    return [inf, *sorted({busy[len(busy) * quarter // 4] for quarter in (1, 2, 3)} - {busy[-1]}, reverse=True)]


def _without_busier(fleet: Fleet, limit_s: float) -> Fleet:
    if limit_s == inf:
        return fleet
    hops = tuple(
        tuple(inf if busy_s > limit_s else hop for hop, busy_s in zip(row, busy, strict=True))
        for row, busy in zip(fleet.hop_s, fleet.link_s, strict=True)
    )
    return replace(fleet, hop_s=hops)


def _seeds(fleet: Fleet) -> list[int]:
    able = [i for i in range(fleet.size) if max(fleet.rooms[i][FIRST], fleet.rooms[i][ALONE]) > 0]
    if fleet.owners is not None:
        able = [i for i in able if i in fleet.owners]
    return sorted(able, key=lambda i: _price(fleet, i, 0.0))[:_SEEDS]


def _price(fleet: Fleet, i: int, hops_s: float) -> float:
    """Return the seconds for each layer that this machine would take from the others."""
    room = min(fleet.rooms[i][MIDDLE], fleet.layers)
    return (fleet.stage_s[i] + hops_s) / room + fleet.layer_s[i] if room else inf


def _grow(fleet: Fleet, start: int) -> tuple[int, ...] | None:
    """Add the machine that is cheapest per layer until all layers fit and there are enough stages."""
    order: tuple[int, ...] = (start,)
    spare = {i for i in range(fleet.size) if i != start and max(fleet.rooms[i][:ALONE]) > 0}
    if fleet.owners is not None:
        # The holder of the last layers; other machines come between.
        spare_owners = sorted(spare & fleet.owners, key=lambda i: _price(fleet, i, fleet.hop_s[i][start]))
        if spare_owners:
            order = (start, spare_owners[0])
            spare.discard(spare_owners[0])
    while len(order) < fleet.stages_min or not _fits(fleet, order):
        if len(order) > 1 and len(order) >= fleet.stages_min and (turned := _turned(fleet, order)):
            return turned
        if not spare or len(order) >= min(fleet.stages_max, fleet.layers):
            return None
        gaps = _Gaps.of(fleet, order)
        cheapest = {i: gaps.cheapest(i) for i in sorted(spare)}
        chosen = min(cheapest, key=lambda i: _price(fleet, i, cheapest[i][0]))
        hops_s, at = cheapest[chosen]
        if hops_s == inf:
            return None
        order = (*order[:at], chosen, *order[at:])
        spare.discard(chosen)
    return order


def _turned(fleet: Fleet, order: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the same machines with another one last, if that makes room for the layers."""
    if sum(min(max(fleet.rooms[i]), fleet.layers) for i in order) < fleet.layers:
        return None
    others = (order[:at] + order[at + 1 :] + (order[at],) for at in range(1, len(order) - 1))
    return next((other for other in others if _fits(fleet, other)), None)


def _fits(fleet: Fleet, order: tuple[int, ...]) -> bool:
    return fill(fleet, order, caps(fleet, order)) is not None


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The gaps of a pipeline where another machine could be inserted, never before its first one."""

    fleet: Fleet
    inner: list[tuple[int, int, float]]
    """(before, behind, seconds of the hop between them), gap after gap."""
    closing: tuple[int, int, float]

    @classmethod
    def of(cls, fleet: Fleet, order: tuple[int, ...]) -> "_Gaps":
        inner = [(a, b, fleet.hop_s[a][b]) for a, b in pairwise(order)]
        back = fleet.back_s[order[-1]][order[0]] if len(order) > 1 else 0.0
        return cls(fleet, inner, (order[-1], order[0], back))

    def cheapest(self, machine: int) -> tuple[float, int]:
        """Return the least extra seconds of hops for this machine, and the gap with that cost."""
        hops, row = self.fleet.hop_s, self.fleet.hop_s[machine]
        last, first, back = self.closing
        costs = [(hops[a][machine] + row[b] - old, at) for at, (a, b, old) in enumerate(self.inner, 1)]
        if self.fleet.owners is None or machine in self.fleet.owners:
            closing_s = hops[last][machine] + self.fleet.back_s[machine][first] - back
            costs.append((closing_s, len(self.inner) + 1))
        return min(costs, default=(inf, 1))


def _improved(fleet: Fleet, partition: Partition, budget: _Budget) -> Partition:
    """Take improving moves until there is none or the budget is spent."""
    while True:
        for order in _neighbours(fleet, partition.order):
            if not budget.spend(len(order)):
                return partition
            if better := _better(fleet, order, partition.cost_s * (1 - _GAIN_MIN)):
                partition = better
                break
        else:
            return partition


def _better(fleet: Fleet, order: tuple[int, ...], limit_s: float) -> Partition | None:
    """Return this pipeline if it costs less than `limit_s` seconds, otherwise None."""
    if fleet.in_flight * link_pace_s(fleet, order) > limit_s:
        return None
    around_s = round_s(fleet, order)
    if around_s >= limit_s:
        return None
    counts = partition_within(fleet, order, limit_s, around_s)
    if counts is None:
        return None
    partition = best_partition(fleet, order, _HALVINGS)
    if partition is None or partition.cost_s > limit_s:
        return Partition(order, tuple(counts), cost_s(fleet, order, tuple(counts)))
    return partition


def _neighbours(fleet: Fleet, order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return every pipeline one move away, the most promising moves first."""
    stages, pinned = len(order), 1 if fleet.first is not None else 0
    if stages > fleet.stages_min:
        yield from (order[:at] + order[at + 1 :] for at in range(pinned, stages) if stages > 1)
    outside = [i for i in range(fleet.size) if i not in order and max(fleet.rooms[i]) > 0]
    outside.sort(key=lambda i: _price(fleet, i, 0.0))
    if stages < min(fleet.stages_max, fleet.layers):
        gaps = _Gaps.of(fleet, order)
        for i in outside:
            _, at = gaps.cheapest(i)
            yield (*order[:at], i, *order[at:])
            yield from ((*order[:end], i, *order[end:]) for end in {pinned, stages} - {at})
    for i in outside:
        yield from ((*order[:at], i, *order[at + 1 :]) for at in range(pinned, stages))
    for a in range(pinned, stages):
        rest = order[:a] + order[a + 1 :]
        yield from ((*rest[:b], order[a], *rest[b:]) for b in range(pinned, stages) if b != a)
    for a in range(pinned, stages):
        for b in range(a + 2, stages):
            yield (*order[:a], order[b], *order[a + 1 : b], order[a], *order[b + 1 :])
    for a in range(pinned, stages):
        yield from (order[:a] + order[a:b][::-1] + order[b:] for b in range(a + 3, stages + 1))
