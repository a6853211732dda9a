"""The choice of what to unload: it equals the best of all choices, and breaks no promise."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ModelDoesNotFit
from cluster.models.layer_cost import Precision
from cluster.models.manifest import read_config
from cluster.models.model_card import read_card
from cluster.plans.evictions import Room, Tenant, WantedModel, make_room, make_rooms
from cluster.plans.memory_division import Least
from cluster.plans.plan import Member, fit_check, plan_stages
from cluster.trust.identity import NodeId
from tests.cluster.test_embeddings import member
from tests.cluster.test_memory_division import GIB, alone, usable
from tests.clusters import DEMO_MODEL


def split(needed_bytes: int) -> Least:
    """A model that takes what is left of the machines in turn."""

    def least(members: Sequence[Member]) -> Mapping[NodeId, int]:
        rest, taken = needed_bytes, {}
        for each in members:
            taken[each.node_id] = min(rest, each.machine.memory_usable_bytes)
            rest -= taken[each.node_id]
        if rest:
            raise ModelDoesNotFit("model", needed_bytes, needed_bytes - rest)
        return taken

    return least


@st.composite
def crowds(draw: st.DrawFn) -> tuple[WantedModel, list[Tenant], list[Member]]:
    machines = [member(name, draw(st.integers(4, 16)) / 4) for name in "abc"[: draw(st.integers(1, 3))]]
    left = usable(machines)
    tenants = []
    for at in range(draw(st.integers(0, 6))):
        node_id = draw(st.sampled_from(sorted(left)))
        held_bytes = draw(st.integers(0, left[node_id] * 4 // GIB)) * GIB // 4
        left[node_id] -= held_bytes
        tenants.append(
            Tenant(
                str(at),
                f"m{at}",
                {node_id: held_bytes},
                priority=draw(st.integers(0, 2)),
                of_use_s=draw(st.integers(0, 3)),
                is_pinned=draw(st.booleans()) and draw(st.booleans()),
                running=draw(st.integers(0, 1)),
                stays_s=draw(st.sampled_from([-1.0, 0.0, 2.5])),
                is_moving=draw(st.booleans()) and draw(st.booleans()),
            )
        )
    least = draw(st.sampled_from([alone, split]))(draw(st.integers(1, 24)) * GIB // 4)
    return WantedModel("new", "new", least, draw(st.integers(0, 2))), tenants, machines


def fits(candidate: WantedModel, tenants: Sequence[Tenant], machines: Sequence[Member]) -> bool:
    return make_room(replace(candidate, priority=-1), tenants, machines).fits_now


def brute_force(candidate: WantedModel, tenants: list[Tenant], machines: list[Member]) -> set[str] | None:
    """The names of the best choice among all; None if there is none."""
    allowed = [tenant for tenant in tenants if not tenant.is_pinned and tenant.priority <= candidate.priority]
    for pool in ([tenant for tenant in allowed if not tenant.obstacle], allowed):
        found = [
            chosen
            for size in range(len(pool) + 1)
            for chosen in itertools.combinations(pool, size)
            if fits(candidate, [tenant for tenant in tenants if tenant not in chosen], machines)
        ]
        if found:
            best = min(
                found, key=lambda chosen: (len(chosen), sorted((each.rank for each in chosen), reverse=True))
            )
            return {tenant.name for tenant in best}
    return None


@given(crowds())
def test_the_choice_is_the_best_of_all(crowd: tuple[WantedModel, list[Tenant], list[Member]]) -> None:
    candidate, tenants, machines = crowd
    room = make_room(candidate, tenants, machines)
    best = brute_force(candidate, tenants, machines)
    assert room == make_room(candidate, tenants, machines)
    going = {*room.unload, *room.wait_for}
    if best is None:
        assert room.error or room.is_blocked
        assert not going
        return
    assert going == best
    assert room.error is None
    assert not room.is_blocked
    chosen = [tenant for tenant in tenants if tenant.name in going]
    assert not any(tenant.is_pinned or tenant.priority > candidate.priority for tenant in chosen)
    assert {tenant.name for tenant in chosen if tenant.obstacle} == set(room.wait_for)
    totals = usable(machines)
    staying = [tenant for tenant in tenants if tenant not in chosen]
    for node_id, needed_bytes in room.needs.items():
        taken = sum(tenant.held.get(node_id, 0) for tenant in staying if not callable(tenant.held))
        assert taken + needed_bytes <= totals[node_id]


@given(crowds(), crowds())
def test_no_memory_is_given_to_two(
    crowd: tuple[WantedModel, list[Tenant], list[Member]], other: tuple[WantedModel, list[Tenant], list[Member]]
) -> None:
    first, tenants, machines = crowd
    second = WantedModel("other", "other", other[0].least, other[0].priority)
    rooms = make_rooms([first, second], tenants, machines)
    assert rooms[0].fits_now == fits(first, tenants, machines)
    taken = usable(machines)
    for tenant in tenants:
        for node_id, held_bytes in tenant.held.items() if not callable(tenant.held) else ():
            taken[node_id] -= held_bytes
    for room in rooms:
        for node_id, needed_bytes in room.needs.items() if room.fits_now else ():
            taken[node_id] -= needed_bytes
    assert min(taken.values()) >= 0
    assert not {*rooms[0].unload, *rooms[0].wait_for} & {*rooms[1].unload, *rooms[1].wait_for}
    assert "new" not in (*rooms[1].unload, *rooms[1].wait_for) or rooms[1].wait_for


def test_the_reason_is_in_words() -> None:
    coder = Tenant("a", "coder", {NodeId("desk"): 6 * GIB}, 50, running=3)
    desk = [member("desk", 8)]

    def decide(tenant: Tenant, needed: int = 4, priority: int = 50) -> Room:
        return make_room(WantedModel("new", "new", alone(needed * GIB), priority), [tenant], desk)

    assert decide(coder).reason == "waits for coder, which answers 3 requests"
    stays = Tenant("a", "coder", coder.held, 50, stays_s=11.2)
    assert decide(stays).reason == "waits for coder, which stays for at least 12 s"
    moves = Tenant("a", "coder", coder.held, 50, is_moving=True)
    assert decide(moves).reason == "waits for coder, which is being stopped or replaced"
    idle = Tenant("a", "coder", coder.held, 50)
    assert (decide(idle).unload, decide(idle).reason) == (("a",), "memory for new")
    assert decide(idle, priority=40).reason == "needs memory that models of a higher priority hold: coder"
    assert "MiB short" in decide(idle, needed=9).reason


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=3), st.sampled_from(["fp32", "int8", None]), st.booleans()
)
def test_the_quick_check_refuses_nothing_that_fits(
    quarters: list[int], precision: Precision | None, is_short: bool
) -> None:
    card = read_card(read_config(DEMO_MODEL))
    context_tokens = 256 if is_short else None
    may_fit = fit_check(card, precision=precision, slots=4, context_tokens=context_tokens)
    machines = [member(f"m{at}", each / 2**12) for at, each in enumerate(quarters)]
    try:
        plan_stages("new", card, machines, precision=precision, slots=4, context_tokens=context_tokens)
    except ModelDoesNotFit:
        return
    assert may_fit(machines)
