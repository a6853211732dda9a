"""The best pipeline out of a dozen machines, proven: dynamic programming over sets of machines.

A pipeline's cost has two parts. The set of machines with its first and last one decides the best partition of the
layers (`plans.partitions`). The order of the machines only decides the cost of hops. Shortest paths over sets
(Held and Karp, 1962) give the cheapest order for each set, first and last machine. With a lower bound per set,
only a few sets need a partition.
"""

from dataclasses import replace
from math import inf
from operator import add

from cluster.plans.partition_search import search_partition
from cluster.plans.partitions import LAST, MIDDLE, Fleet, Partition, best_partition, caps, fill, round_s

MACHINES_MAX = 12
# A pipeline that differs from the best one only by rounding is not better.
_GAIN_MIN = 1e-9
# The work of the heuristic search that gives the first bound.
_FIRST_WORK = 4_000


def exact_partition(fleet: Fleet) -> Partition | None:
    """Return the cheapest pipeline, or None if the layers do not fit. At most MACHINES_MAX machines, no owners.

    A busy link can be the bottleneck of a pipeline, but it depends on the order, which the split above ignores. So
    the search first ignores busy links. If a link then slows the best pipeline, only pipelines without such a busy
    link can be better, and the search continues over those.
    """
    assert fleet.size <= MACHINES_MAX
    assert fleet.owners is None
    best = search_partition(fleet, work=_FIRST_WORK)
    while True:
        limit_s = best.cost_s * (1 - _GAIN_MIN) if best else inf
        relaxed = _Sets(_without_busy_links(fleet, limit_s), limit_s).best()
        if relaxed is None:
            return best
        order, relaxed_s = relaxed
        partition = best_partition(fleet, order)
        assert partition
        best = partition
        if partition.cost_s <= relaxed_s * (1 + _GAIN_MIN):
            return best


def _without_busy_links(fleet: Fleet, limit_s: float) -> Fleet:
    hops = tuple(
        tuple(inf if fleet.in_flight * busy_s >= limit_s else hop for hop, busy_s in zip(row, busy, strict=True))
        for row, busy in zip(fleet.hop_s, fleet.link_s, strict=True)
    )
    return replace(fleet, hop_s=hops)


class _Sets:
    """One pass over all sets of machines for a pipeline that costs less than `limit_s`, busy links ignored."""

    def __init__(self, fleet: Fleet, limit_s: float) -> None:
        self._fleet = replace(fleet, link_s=tuple((0.0,) * fleet.size for _ in range(fleet.size)))
        self._limit_s = limit_s
        self._order: tuple[int, ...] | None = None
        self._columns = [[fleet.hop_s[i][j] for i in range(fleet.size)] for j in range(fleet.size)]
        self._members = _members(fleet.size)
        self._bounds = [self._bound(mask) for mask in range(1 << fleet.size)]

    def best(self) -> tuple[tuple[int, ...], float] | None:
        fleet = self._fleet
        for i in range(fleet.size):
            if fleet.stages_min <= 1 and fleet.first in (None, i):
                self._consider((i,))
        roots = range(fleet.size) if fleet.first is None else (fleet.first,)
        for root in roots:
            self._from(root)
        return (self._order, self._limit_s) if self._order else None

    def _bound(self, mask: int) -> float:
        """Return a lower bound of the seconds of this set's pipelines, without hops; inf if beyond the limit."""
        fleet, members = self._fleet, self._members[mask]
        if not max(2, fleet.stages_min) <= len(members) <= min(fleet.stages_max, fleet.layers):
            return inf
        pace_s = self._limit_s / fleet.in_flight if fleet.in_flight else inf
        limits = [_cap(fleet, i, pace_s) for i in members]
        counts = fill(fleet, members, limits)
        if counts is None:
            return inf
        layers_s = sum(k * fleet.layer_s[i] for i, k in zip(members, counts, strict=True))
        fixed_s = sum(fleet.stage_s[i] for i in members) + min(fleet.last_s[i] for i in members)
        return fleet.coordinator_s + fixed_s + layers_s

    def _from(self, root: int) -> None:
        """Find the cheapest paths from `root` through every set to every last machine. Partition the best."""
        fleet, columns = self._fleet, self._columns
        home = 1 << root
        nowhere = [inf] * fleet.size
        paths: list[list[float]] = [nowhere] * (1 << fleet.size)
        paths[home] = [0.0 if i == root else inf for i in range(fleet.size)]
        back = [fleet.back_s[i][root] for i in range(fleet.size)]
        for mask in range(1 << fleet.size):
            if not mask & home or mask == home:
                continue
            lengths = [inf] * fleet.size
            for last in self._members[mask]:
                if last != root:
                    lengths[last] = min(map(add, paths[mask ^ (1 << last)], columns[last]))
            paths[mask] = lengths
            room_s = self._limit_s - self._bounds[mask]
            if room_s <= 0 or min(map(add, lengths, back)) >= room_s:
                continue
            for last in self._members[mask]:
                if lengths[last] + back[last] < room_s:
                    self._consider(self._path(paths, mask, root, last))

    def _consider(self, order: tuple[int, ...]) -> None:
        """Take this pipeline if it is better than the best one so far."""
        fleet = self._fleet
        around_s = round_s(fleet, order)
        if around_s >= self._limit_s:
            return
        pace_s = self._limit_s / fleet.in_flight if fleet.in_flight else inf
        counts = fill(fleet, order, caps(fleet, order, pace_s))
        if counts is None:
            return
        if around_s + sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True)) >= self._limit_s:
            return
        partition = best_partition(fleet, order)
        if partition and partition.cost_s < self._limit_s * (1 - _GAIN_MIN):
            self._order, self._limit_s = order, partition.cost_s

    def _path(self, paths: list[list[float]], mask: int, root: int, last: int) -> tuple[int, ...]:
        backwards = [last]
        while last != root:
            mask ^= 1 << last
            column, lengths = self._columns[last], paths[mask]
            last = min(self._members[mask], key=lambda i: lengths[i] + column[i])
            backwards.append(last)
        return tuple(reversed(backwards))


def _members(size: int) -> list[tuple[int, ...]]:
    return [tuple(i for i in range(size) if mask >> i & 1) for mask in range(1 << size)]


def _cap(fleet: Fleet, i: int, pace_s: float) -> int:
    """Return the most layers that this machine may hold in any role but alone."""
    room = max(fleet.rooms[i][MIDDLE : LAST + 1])
    if pace_s == inf:
        return room
    spare = pace_s - fleet.stage_s[i]
    return min(room, int(spare / fleet.layer_s[i] + 1e-9)) if spare > 0 else 0
