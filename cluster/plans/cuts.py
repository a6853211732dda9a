"""The best cut of a model's layers over machines in a given order, and what a ring costs.

Costs are seconds for steps of one size (`Fleet`). With T the time of one step once round the ring and p the
slowest stage's or link's, m steps in flight finish every max(T, m * p); for one stream alone T itself is what
counts. The question "is there a cut that costs no more than J" is answered exactly by filling the fastest machines
first, each up to its memory and to the pace J / m; halving the interval between two answers finds the best J.

Layers count as equal here, each as large as the model's average one; `plans.plan` moves boundaries afterwards
where they are not.
"""

import itertools
from dataclasses import dataclass
from math import inf

MIDDLE, FIRST, LAST, ALONE = range(4)
"""Roles by which a machine's room differs: who embeds and who computes logits holds those weights, too."""

_HALVINGS = 48


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines and links as the search sees them, by number; every time is that of one step."""

    layers: int
    layer_s: tuple[float, ...]
    stage_s: tuple[float, ...]
    last_s: tuple[float, ...]
    rooms: tuple[tuple[int, int, int, int], ...]
    """Layers that fit in memory, by role."""
    hop_s: tuple[tuple[float, ...], ...]
    """From a machine to another until a step's rows are there."""
    back_s: tuple[tuple[float, ...], ...]
    """From the last machine to the head, which sits beside the first stage: tokens, no rows."""
    link_s: tuple[tuple[float, ...], ...]
    """For how long a step's rows keep a link busy."""
    head_s: float = 0.0
    in_flight: int = 0
    """Steps under way at once; 0 when only one stream's time counts."""
    stages_min: int = 1
    stages_max: int = 2**31
    first: int | None = None
    """The machine that has to be first, if any."""
    owners: frozenset[int] | None = None
    """Machines that alone may hold the first `owned_first` and the last `owned_last` layers."""
    owned_first: int = 0
    owned_last: int = 0

    @property
    def size(self) -> int:
        return len(self.layer_s)


@dataclass(frozen=True, slots=True)
class Ring:
    """Machines in order, how many layers each holds, and what the ring costs in seconds."""

    order: tuple[int, ...]
    counts: tuple[int, ...]
    cost_s: float


def round_s(fleet: Fleet, order: tuple[int, ...]) -> float:
    """One step's way round without the layers: stages' fixed parts, logits, hops and head."""
    hops = fleet.back_s[order[-1]][order[0]] if len(order) > 1 else 0.0
    for sender, receiver in itertools.pairwise(order):
        hops += fleet.hop_s[sender][receiver]
    return fleet.head_s + hops + sum(fleet.stage_s[i] for i in order) + fleet.last_s[order[-1]]


def link_pace_s(fleet: Fleet, order: tuple[int, ...]) -> float:
    """The busiest link's time per step."""
    return max((fleet.link_s[i][j] for i, j in itertools.pairwise(order)), default=0.0)


def stage_seconds(fleet: Fleet, order: tuple[int, ...], counts: tuple[int, ...]) -> list[float]:
    """Each stage's time per step."""
    seconds = [fleet.stage_s[i] + k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True)]
    seconds[-1] += fleet.last_s[order[-1]]
    return seconds


def cost_s(fleet: Fleet, order: tuple[int, ...], counts: tuple[int, ...]) -> float:
    """What a ring costs: T for one stream, else max(T, m * p)."""
    layers = sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    around = round_s(fleet, order) + layers
    pace = max(*stage_seconds(fleet, order, counts), link_pace_s(fleet, order))
    return max(around, fleet.in_flight * pace)


def caps(fleet: Fleet, order: tuple[int, ...], pace_s: float = inf) -> list[int]:
    """How many layers each stage may hold: within memory, and within `pace_s` for a step."""
    stages = len(order)
    roles = [ALONE] if stages == 1 else [FIRST, *([MIDDLE] * (stages - 2)), LAST]
    limits = [fleet.rooms[i][role] for i, role in zip(order, roles, strict=True)]
    if pace_s == inf:
        return limits
    for at, i in enumerate(order):
        spare = pace_s - fleet.stage_s[i] - (fleet.last_s[i] if at == stages - 1 else 0.0)
        # A billionth more, so that a pace computed from a cut allows this very cut.
        allowed = int(spare / fleet.layer_s[i] + 1e-9) if spare > 0 else 0
        limits[at] = min(limits[at], allowed)
    return limits


def fill(fleet: Fleet, order: tuple[int, ...], limits: list[int]) -> list[int] | None:
    """Layers for each stage, at least one and at most its limit, in the least time; None when they do not fit."""
    counts = [1] * len(order)
    left = fleet.layers - len(order)
    if left < 0 or min(limits) < 1 or not _is_owned(fleet, order):
        return None
    fastest = sorted(range(len(order)), key=lambda at: fleet.layer_s[order[at]])
    if fleet.owners is not None:
        # Whoever may hold the ends must hold all of them before anybody is served by speed alone.
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
    """Hand out `left` more layers in this order; returns how many found no room."""
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


def cut_within(fleet: Fleet, order: tuple[int, ...], limit_s: float, around_s: float) -> list[int] | None:
    """A cut of this ring that costs at most `limit_s`, if there is one. `around_s` is its `round_s`."""
    pace_s = limit_s / fleet.in_flight if fleet.in_flight else inf
    counts = fill(fleet, order, caps(fleet, order, pace_s))
    if counts is None:
        return None
    layers_s = sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    return counts if around_s + layers_s <= limit_s else None


def best_cut(fleet: Fleet, order: tuple[int, ...], halvings: int = _HALVINGS) -> Ring | None:
    """The cheapest cut of this ring, links included; None when the layers do not fit."""
    counts = fill(fleet, order, caps(fleet, order))
    if counts is None:
        return None
    around_s = round_s(fleet, order)
    low = around_s + sum(k * fleet.layer_s[i] for i, k in zip(order, counts, strict=True))
    high = max(low, fleet.in_flight * max(stage_seconds(fleet, order, tuple(counts))))
    if high > low:  # Less than T it cannot cost: the fastest cut of all has just been found.
        if better := cut_within(fleet, order, low * (1 + 1e-12), around_s):
            counts, high = better, low
        for _ in range(halvings):
            if high - low <= high * 1e-9:
                break
            middle = (low + high) / 2
            if better := cut_within(fleet, order, middle, around_s):
                counts, high = better, middle
            else:
                low = middle
    found = tuple(counts)
    return Ring(order, found, cost_s(fleet, order, found))


def even(fleet: Fleet, ring: Ring, slack: float) -> Ring:
    """Of the cuts of this ring that cost at most `slack` more, the one whose slowest stage is fastest.

    Two plans that are as good as each other by their cost are not for what comes next: more streams.
    """
    limit_s = ring.cost_s * (1 + slack)
    around_s = round_s(fleet, ring.order)
    counts = ring.counts
    low, high = 0.0, max(stage_seconds(fleet, ring.order, ring.counts))
    for _ in range(_HALVINGS):
        if high - low <= high * 1e-6:
            break
        middle = (low + high) / 2
        found = fill(fleet, ring.order, caps(fleet, ring.order, middle))
        layers_s = sum(k * fleet.layer_s[i] for i, k in zip(ring.order, found, strict=True)) if found else inf
        if found and around_s + layers_s <= limit_s:
            counts, high = tuple(found), middle
        else:
            low = middle
    return Ring(ring.order, counts, cost_s(fleet, ring.order, counts))
