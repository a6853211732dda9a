"""The division of memory between deployments: nothing is promised twice, and each keeps what it needs."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ModelDoesNotFit
from cluster.plans.memory_division import Claim, Least, divide_memory, memory_of_others
from cluster.plans.needs import StageMemory
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId
from tests.cluster.test_embeddings import member

GIB = 2**30


def alone(needed_bytes: int) -> Least:
    """A model that is whole on the machine with the most memory left."""

    def least(members: Sequence[Member]) -> Mapping[NodeId, int]:
        largest = max(members, key=lambda each: (each.machine.memory_usable_bytes, each.node_id))
        usable_bytes = largest.machine.memory_usable_bytes
        if usable_bytes < needed_bytes:
            raise ModelDoesNotFit("model", needed_bytes, usable_bytes)
        return {largest.node_id: needed_bytes}

    return least


def usable(members: Sequence[Member]) -> dict[NodeId, int]:
    return {each.node_id: each.machine.memory_usable_bytes for each in members}


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Claim], list[Member]]:
    machines = [member(name, draw(st.integers(1, 64)) / 4) for name in "abc"[: draw(st.integers(1, 3))]]
    left = usable(machines)
    claims = []
    for at in range(draw(st.integers(1, 4))):
        needed_bytes = draw(st.integers(1, 24)) * GIB // 4
        serving = None
        able = sorted(node_id for node_id, bytes_left in left.items() if bytes_left >= needed_bytes)
        chosen = draw(st.integers(-len(able), len(able) - 1)) if able else -1
        if chosen >= 0:
            node_id = able[chosen]
            left[node_id] -= needed_bytes
            serving = {node_id: StageMemory(2 * needed_bytes, needed_bytes)}
        claims.append(Claim(str(at), f"m{at}", alone(needed_bytes), serving, has_cache=draw(st.booleans())))
    return claims, machines


@given(fleets())
def test_nothing_is_promised_twice_and_what_serves_keeps_its_least(
    fleet: tuple[list[Claim], list[Member]],
) -> None:
    claims, machines = fleet
    totals = usable(machines)
    own: dict[str, dict[NodeId, int]] = {}
    for claim in claims:
        if claim.serving is not None:
            share = divide_memory(claim.deployment, claims, machines, as_serving=True)
            own[claim.deployment] = usable(share.members)
            for node_id, memory in claim.serving.items():
                assert own[claim.deployment][node_id] >= memory.least_bytes
        else:
            try:
                own[claim.deployment] = usable(divide_memory(claim.deployment, claims, machines).members)
            except ModelDoesNotFit as error:
                if len(claims) > 1:
                    assert all(f"m{other.deployment}" in str(error) for other in claims if other is not claim)
                continue
            if len(claims) > 1:
                # It was planned with this least need, so the plan fits into its share.
                assert claim.least(divide_memory(claim.deployment, claims, machines).members)
    if len(claims) == 1 and not claims[0].serving:
        assert own[claims[0].deployment] == totals
    serving = [claim for claim in claims if claim.serving is not None and claim.has_cache]
    if len(serving) == len(claims) > 1:
        for node_id, total in totals.items():
            assert sum(shares[node_id] for shares in own.values()) <= total


def test_what_is_left_is_divided_and_the_plan_says_so() -> None:
    claims = [Claim("a", "first", alone(2 * GIB)), Claim("b", "second", alone(GIB))]
    share = divide_memory("a", claims, [member("desk", 8), member("mini", 4)])
    # The first model needs 2 GiB of the desk, the second one 1 GiB of what is left there.
    assert usable(share.members) == {"desk": 2 * GIB + 5 * GIB // 2, "mini": 2 * GIB}
    assert share.reason == (
        "memory is divided with second: first may use 4.50 of 8.00 GiB on desk, 2.00 of 4.00 GiB on mini"
    )
    assert share.allows({NodeId("desk"): StageMemory(4 * GIB, GIB)})
    assert not share.allows({NodeId("desk"): StageMemory(8 * GIB, GIB)})
    embedder = Claim("e", "embedder", alone(GIB), has_cache=False)
    beside = divide_memory("a", [claims[0], embedder], [member("desk", 8)])
    assert usable(beside.members) == {"desk": 7 * GIB}, "an embedder takes no cache"
    assert not divide_memory("a", claims[:1], [member("desk", 8)]).reason


def test_a_model_that_does_not_fit_beside_the_others_says_by_how_much() -> None:
    serving = Claim("a", "first", alone(6 * GIB), {NodeId("desk"): StageMemory(7 * GIB, 6 * GIB)})
    large = Claim("b", "second", alone(3 * GIB))
    with pytest.raises(ModelDoesNotFit, match=r"have 2.00 GiB usable beside first: 1024 MiB short"):
        divide_memory("b", [serving, large], [member("desk", 8)])
    # It takes nothing from the one that serves, and the first of the list has priority before anything serves.
    assert usable(divide_memory("a", [serving, large], [member("desk", 8)]).members) == {"desk": 8 * GIB}
    waiting = Claim("a", "first", alone(6 * GIB))
    assert usable(divide_memory("a", [waiting, large], [member("desk", 8)]).members) == {"desk": 8 * GIB}
    with pytest.raises(ModelDoesNotFit, match="beside first"):
        divide_memory("b", [waiting, large], [member("desk", 8)])


def test_an_embedder_avoids_what_others_need_and_no_two_are_promised_the_same_memory() -> None:
    machines = [member("desk", 8), member("mini", 7)]
    first = Claim("a", "first", alone(6 * GIB), has_cache=False)
    chat = Claim("b", "second", alone(2 * GIB))
    own = Claim("c", "third", alone(6 * GIB), has_cache=False)
    last = Claim("d", "fourth", alone(GIB), has_cache=False)
    # The first one has priority. The model for prompts makes room, and the last one comes after it.
    assert memory_of_others("c", [first, chat, own, last], machines) == {
        "desk": StageMemory(6 * GIB, 6 * GIB),
        "mini": StageMemory(2 * GIB, 0),
    }
    serving = Claim("d", "fourth", alone(GIB), {NodeId("desk"): StageMemory(GIB, GIB)}, has_cache=False)
    assert memory_of_others("c", [own, serving], machines) == {"desk": StageMemory(GIB, GIB)}
