"""Clusters that pages draw, planned by the planner itself."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from cluster.control.topology import Topology
from cluster.machine import Device, Machine
from cluster.models.model_card import ModelCard, Rope
from cluster.plans.machine_warnings import MachineWarning
from cluster.plans.network import Link, Network
from cluster.plans.plan import Member, plan_stages
from cluster.trust.identity import NodeId

GIB = 2**30
CARD = ModelCard(
    family="llama",
    vocabulary=32_000,
    hidden=4096,
    intermediate=11_008,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context_tokens=4096,
    norm_epsilon=1e-5,
    rope=Rope(10_000.0),
    tied_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
)
CABLE = Link(delay_s=0.0002, bytes_per_s=117e6)
RADIO = Link(delay_s=0.0038, jitter_s=0.003, bytes_per_s=26e6)


def node_id(at: int) -> NodeId:
    return NodeId(f"{at:032x}")


def member(at: int, name: str, gib: float, *, busy: float = 0.2, kind: str = "cpu") -> Member:
    """A machine with so much memory, of which the system and others take the part `busy`."""
    total_bytes = int(gib * GIB)
    usable_bytes = int(total_bytes * (1 - busy))
    machine = Machine(
        system="Linux",
        architecture="x86_64",
        cores=8,
        memory_total_bytes=total_bytes,
        memory_usable_bytes=usable_bytes,
        device=Device(kind, kind, total_bytes if kind != "cpu" else usable_bytes),
    )
    return Member(node_id(at), name, machine)


def topology(
    members: Sequence[Member],
    *,
    links: Mapping[tuple[int, int], Link] | None = None,
    stages_min: int = 1,
    draining: frozenset[NodeId] = frozenset(),
    warnings: Mapping[NodeId, tuple[MachineWarning, ...]] | None = None,
) -> Topology:
    """What the controller tells of these machines; `links` are by the machines' numbers."""
    known = {(node_id(a), node_id(b)): link for (a, b), link in (links or {}).items()}
    network = Network(known)
    used = [m for m in members if m.node_id not in draining]
    plan = plan_stages("llama-3.1-8b", CARD, used, network=network, stages_min=stages_min, slots=8)
    return Topology(
        status="ready",
        reason=f"llama-3.1-8b over {len(plan.stages)} node(s)",
        epoch=7,
        model="llama-3.1-8b",
        members=tuple(members),
        plan=plan,
        coordinator=plan.stages[0].member.node_id,
        round_trip_ms=12.5,
        standbys=plan.standbys,
        warnings=warnings or {},
        network=network,
        draining=draining,
    )


def everybody(count: int, link: Link = CABLE) -> dict[tuple[int, int], Link]:
    """A link from each of so many machines to each other one."""
    return {(a, b): link for a in range(count) for b in range(count) if a != b}


def household() -> Topology:
    """Three machines of which one is on Wi-Fi, and a fourth beside the ring."""
    members = [
        member(0, "atlas", 24),
        member(1, "boreas", 12, busy=0.1),
        member(2, "ceres", 8),
        member(3, "a-laptop-with-a-long-name.local", 0.5),
    ]
    links = everybody(4) | {pair: RADIO for pair in everybody(4) if 2 in pair}
    wifi = MachineWarning("wifi", "it is reached over Wi-Fi, whose delays vary", "connect it by cable")
    return topology(members, links=links, stages_min=3, warnings={node_id(2): (wifi,)})


def without_prediction(known: Topology) -> Topology:
    """As after a stand-in: the plan says nothing of its times."""
    from dataclasses import replace as changed

    assert known.plan
    return changed(known, plan=replace(known.plan, predicted=None))
