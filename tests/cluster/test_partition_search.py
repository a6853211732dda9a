"""The search for the best pipeline: proven for few machines, close to optimal for many, in bounded time."""

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import pytest

from cluster.plans.exact_partitions import exact_partition
from cluster.plans.network import Link, Network
from cluster.plans.partition_search import search_partition
from cluster.plans.partitions import Fleet, caps, cost_s
from cluster.plans.plan import Goal, Member, plan_stages
from tests.cluster.test_plan import card, member, paced


def fleet(chance: random.Random, size: int, *, layers: int, in_flight: int, is_tight: bool = False) -> Fleet:
    """Return machines in a plane of two towns, each with its own network card."""
    rooms = []
    for _ in range(size):
        middle = chance.randint(0, layers) if not is_tight else chance.randint(0, 2 * layers // size + 2)
        first, last = (max(0, middle - chance.randint(0, 3)) for _ in range(2))
        rooms.append((middle, first, last, max(0, min(first, last) - 1)))
    places = [(chance.random(), chance.choice((0, 20))) for _ in range(size)]
    hops = [[1e-4 + 1e-3 * (abs(a[0] - b[0]) + abs(a[1] - b[1])) for b in places] for a in places]
    cards = [chance.choice((1e-4, 1e-3, 5e-3, 2e-2)) for _ in range(size)]
    return Fleet(
        layers=layers,
        layer_s=tuple(chance.uniform(1e-3, 1e-2) for _ in range(size)),
        stage_s=tuple(chance.uniform(2e-4, 2e-3) for _ in range(size)),
        last_s=tuple(chance.uniform(1e-3, 5e-3) for _ in range(size)),
        rooms=tuple(rooms),
        hop_s=tuple(map(tuple, hops)),
        back_s=tuple(tuple(chance.uniform(0.3, 1) * hop for hop in row) for row in hops),
        link_s=tuple(tuple(max(one, other) for other in cards) for one in cards),
        coordinator_s=3e-4,
        in_flight=in_flight,
    )


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for one in range(1, total - parts + 2):
        yield from ((one, *rest) for rest in compositions(total - one, parts - 1))


def is_owned(fleet: Fleet, order: tuple[int, ...], counts: tuple[int, ...]) -> bool:
    """Tell whether only owners hold the owners' layers."""
    if fleet.owners is None:
        return True
    ends = list(itertools.accumulate(counts))
    holders = zip(order, ends, counts, strict=True)
    return {order[0], order[-1]} <= fleet.owners and all(
        i in fleet.owners or (end - count >= fleet.owned_first and end <= fleet.layers - fleet.owned_last)
        for i, end, count in holders
    )


def every_cost(fleet: Fleet) -> float:
    """Return the least cost of all pipelines with all partitions, computed one by one."""
    best = inf
    for stages in range(fleet.stages_min, min(fleet.size, fleet.layers) + 1):
        for order in itertools.permutations(range(fleet.size), stages):
            if fleet.first not in (None, order[0]):
                continue
            limits = caps(fleet, order)
            for counts in compositions(fleet.layers, stages):
                fits = all(count <= limit for count, limit in zip(counts, limits, strict=True))
                if fits and is_owned(fleet, order, counts):
                    best = min(best, cost_s(fleet, order, counts))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_no_pipeline_is_cheaper_than_the_proven_one(seed: int) -> None:
    chance = random.Random(seed)
    small = fleet(
        chance, chance.randint(1, 5), layers=chance.randint(1, 8), in_flight=chance.choice((0, 0, 1, 2, 3, 8))
    )
    small = replace(small, stages_min=chance.choice((1, 1, 2, 3)), first=chance.choice((None, None, 0)))
    partition = exact_partition(small)
    assert (partition.cost_s if partition else inf) == pytest.approx(every_cost(small), rel=1e-9)


@pytest.mark.parametrize("seed", range(15))
def test_owners_ends_are_partitioned_about_optimally(seed: int) -> None:
    chance = random.Random(seed)
    pinned = fleet(chance, 4, layers=8, in_flight=chance.choice((0, 2, 4)))
    pinned = replace(pinned, owners=frozenset({0, 1}), owned_first=2, owned_last=1)
    best, partition = every_cost(pinned), search_partition(pinned)
    assert (partition is None) == (best == inf)
    if partition:
        assert is_owned(pinned, partition.order, partition.counts)
        assert partition.cost_s <= best * 1.02


@pytest.mark.parametrize("in_flight", [0, 2, 4, 16])
@pytest.mark.parametrize("fleets", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_the_search_among_many_is_within_two_percent_of_the_proven_best(in_flight: int, fleets: int) -> None:
    chance = random.Random(in_flight)
    compared = 0
    for _ in range(fleets):
        eight = fleet(chance, 8, layers=32, in_flight=in_flight, is_tight=True)
        proven, found = exact_partition(eight), search_partition(eight)
        assert (proven is None) == (found is None)
        if proven and found:
            assert found.cost_s <= proven.cost_s * 1.02
            compared += 1
    assert compared >= 7 / 16 * fleets


@functools.cache
def many_members(machines: int) -> tuple[list[Member], Network]:
    """Return machines of three paces, some on radio, and the links between all: 40,000 for 200 machines."""
    chance = random.Random(machines)
    members = [
        member(n, chance.uniform(4, 24), pace=paced(chance.choice((1e-4, 2e-4, 4e-4)) * chance.uniform(0.8, 1.2)))
        for n in range(machines)
    ]
    is_radio = {m.node_id: chance.random() < 0.3 for m in members}
    links = {}
    for one, other in itertools.permutations(members, 2):
        slow = is_radio[one.node_id] + is_radio[other.node_id]
        delay_s = 1e-4 + 2e-3 * slow * chance.uniform(0.5, 2)
        links[one.node_id, other.node_id] = Link(delay_s=delay_s, bytes_per_s=1e7 if slow else 1e8)
    return members, Network(links)


@pytest.mark.parametrize("goal", ["latency", "throughput"])
@pytest.mark.parametrize(
    ("machines", "stages_min"),
    [
        (12, 2),
        pytest.param(12, 12, marks=pytest.mark.slow),
        (60, 2),
        (60, 60),
        pytest.param(200, 2, marks=pytest.mark.slow),
        pytest.param(200, 200, marks=pytest.mark.slow),
    ],
)
def test_a_plan_of_many_machines_has_its_stages(machines: int, stages_min: int, goal: Goal) -> None:
    members, network = many_members(machines)
    plan = plan_stages("m", card(layers=80), members, network=network, goal=goal, stages_min=stages_min)
    assert len(plan.stages) >= min(stages_min, 2)
