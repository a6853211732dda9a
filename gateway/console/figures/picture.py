"""The cluster as a picture: machines as fill levels, links between stages, the bottleneck. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cluster.control.topology import Topology
from cluster.machine import Machine
from cluster.models.model_card import ModelCard
from cluster.plans.machine_warnings import MachineWarning
from cluster.plans.needs import BLOCK_TOKENS, read_needs
from cluster.plans.network import Link
from cluster.plans.plan import Member, Plan, PlannedStage
from cluster.trust.identity import NodeId

# A tenth of gigabit Ethernet at home, which the planner assumes for an unmeasured link.
SLOW_DELAY_S = 0.0015
SLOW_BYTES_PER_S = 11e6

# No network at home or in a single rack is faster.
_MBIT_MAX = 100_000

# Free memory changes with every heartbeat: changes too small to see are ignored.
_STEPS = 200

PartKind = Literal["weights", "copies", "kv", "work", "free", "other"]
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
"""From bottom to top of a machine."""
LinkMark = Literal["", "Wi-Fi", "slow"]


@dataclass(frozen=True, slots=True)
class PicturePart:
    """A part of a machine's memory by its use; `other` is the system and other programs."""

    kind: PartKind
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tank:
    """One machine. `stage` is None outside the pipeline; `standby_of` lists the stages that it holds copies of.

    `is_waiting` marks a connected machine while no pipeline exists.
    """

    node_id: NodeId
    name: str
    device: str
    stage: int | None
    layers: str
    parts: tuple[PicturePart, ...]
    total_bytes: int
    usable_bytes: int
    reason: str
    standby_of: tuple[int, ...] = ()
    stage_ms: float | None = None
    is_coordinator: bool = False
    is_pace: bool = False
    is_draining: bool = False
    is_embedder: bool = False
    is_waiting: bool = False
    warnings: tuple[MachineWarning, ...] = ()

    @property
    def held_bytes(self) -> int:
        """The bytes that the cluster uses."""
        return sum(part.size_bytes for part in self.parts if part.kind not in ("free", "other"))

    def bytes_of(self, kind: PartKind) -> int:
        return sum(part.size_bytes for part in self.parts if part.kind == kind)

    @property
    def role(self) -> str:
        """The role in words."""
        if self.stage is not None:
            return f"stage {self.stage}" + (" · coordinator" if self.is_coordinator else "")
        if self.is_draining:
            return "drained"
        if self.standby_of:
            return "standby of " + ", ".join(map(str, self.standby_of))
        if self.is_embedder:
            return "embeddings"
        return "waiting" if self.is_waiting else "spare"


@dataclass(frozen=True, slots=True)
class Wire:
    """A link to the next stage; with `is_back` from the last stage to the coordinator, carrying token ids only."""

    sender: str
    receiver: str
    delay_s: float | None
    bytes_per_s: float | None
    mark: LinkMark
    is_back: bool

    @property
    def delay(self) -> str:
        return "not measured" if self.delay_s is None else duration(self.delay_s)

    @property
    def rate(self) -> str:
        return "" if self.bytes_per_s is None else rate(self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Picture:
    """`pipeline` has the stages in order, `beside` the machines without a stage."""

    status: str
    reason: str
    model: str | None
    pipeline: tuple[Tank, ...]
    wires: tuple[Wire, ...]
    beside: tuple[Tank, ...]

    @property
    def tanks(self) -> tuple[Tank, ...]:
        return (*self.pipeline, *self.beside)

    @property
    def summary(self) -> str:
        """One sentence for screen readers."""
        if not self.tanks:
            return "no machines yet"
        stages = f"{len(self.pipeline)} {'stage' if len(self.pipeline) == 1 else 'stages'}"
        paced = next((f", bottleneck {tank.name}" for tank in self.pipeline if tank.is_pace), "")
        beside = f"; {len(self.beside)} not in use" if self.beside else ""
        return f"{self.model or 'no model'}, {stages}{paced}{beside}"


def draw(topology: Topology, card: ModelCard | None) -> Picture:
    """Return the picture; without a `card` only the weights of a stage are known."""
    plan = topology.plan
    stages = plan.stages if plan else ()
    held = {stage.member.node_id for stage in stages}
    # Use the members' current state, not the state at planning time.
    present = {member.node_id: member for member in topology.members}
    pace = _pace(plan)
    pipeline = tuple(
        _tank(topology, present.get(stage.member.node_id, stage.member), stage, card, is_pace=at == pace)
        for at, stage in enumerate(stages)
    )
    beside = tuple(
        _tank(topology, member, None, card) for member in topology.members if member.node_id not in held
    )
    return Picture(topology.status, topology.reason, topology.model, pipeline, _wires(topology, pipeline), beside)


def _pace(plan: Plan | None) -> int | None:
    """Return the slowest stage, if more than one is known."""
    if plan is None or plan.predicted is None or len(plan.predicted.stage_s) < 2:
        return None
    seconds = plan.predicted.stage_s
    return seconds.index(max(seconds))


def _tank(
    topology: Topology,
    member: Member,
    stage: PlannedStage | None,
    card: ModelCard | None,
    *,
    is_pace: bool = False,
) -> Tank:
    machine, node_id = member.machine, member.node_id
    copies = [copy for copy in topology.standbys if copy.member.node_id == node_id]
    return Tank(
        node_id=node_id,
        name=member.name,
        device=_device(machine),
        stage=stage.spec.index if stage else None,
        layers=_layers(stage) if stage else "",
        parts=_parts(topology.plan, member, stage, copies, card),
        total_bytes=_total_bytes(machine),
        usable_bytes=_usable_bytes(machine),
        reason=stage.reason if stage else _reason_beside(topology, member, copies),
        standby_of=tuple(copy.spec.index for copy in copies),
        stage_ms=_stage_ms(topology.plan, stage),
        is_coordinator=node_id == topology.coordinator,
        is_pace=is_pace,
        is_draining=node_id in topology.draining,
        is_embedder=any(model.kind == "embedding" and node_id in model.machines for model in topology.deployments),
        is_waiting=topology.plan is None,
        warnings=topology.warnings.get(node_id, ()),
    )


def _device(machine: Machine) -> str:
    kind = machine.device.kind.upper()
    return f"{kind} · {machine.cores} cores" if kind == "CPU" else f"{kind} · {machine.device.name}"


def _total_bytes(machine: Machine) -> int:
    return machine.memory_total_bytes if machine.device.kind == "cpu" else machine.device.memory_bytes


def _usable_bytes(machine: Machine) -> int:
    """Return usable memory rounded down to a step, in bytes."""
    step = max(1, _total_bytes(machine) // _STEPS)
    return machine.memory_usable_bytes // step * step


def _stage_ms(plan: Plan | None, stage: PlannedStage | None) -> float | None:
    """Return the predicted time of a one-row step in ms, or None."""
    if plan is None or plan.predicted is None or stage is None:
        return None
    seconds = plan.predicted.stage_s
    return seconds[stage.spec.index] * 1000 if stage.spec.index < len(seconds) else None


def _layers(stage: PlannedStage) -> str:
    first, last = stage.spec.first_layer, stage.spec.end_layer - 1
    return f"layer {first}" if first == last else f"layers {first}–{last}"


def _reason_beside(topology: Topology, member: Member, copies: Sequence[PlannedStage]) -> str:
    """Return the plan's reason for not using the machine, if it gives one."""
    if member.node_id in topology.draining:
        return "drained: no plan uses it"
    if copies:
        return copies[0].reason
    reasons = topology.plan.reasons if topology.plan else ()
    left_out = f"{member.name} is left out"
    return next((reason for reason in reasons if reason.startswith(left_out)), "no plan uses it yet")


def _parts(
    plan: Plan | None,
    member: Member,
    stage: PlannedStage | None,
    copies: Sequence[PlannedStage],
    card: ModelCard | None,
) -> tuple[PicturePart, ...]:
    """Return the parts from bottom to top; they add up to the machine's memory if its reports are correct."""
    machine = member.machine
    sizes: dict[PartKind, int] = {
        "weights": stage.weight_bytes if stage else 0,
        "copies": sum(copy.weight_bytes for copy in copies),
    }
    if plan and stage and card:
        spec = stage.spec
        needs = read_needs(card, plan.precision, plan.slots, machine.device.kind, plan.context_tokens)
        sizes["kv"] = plan.kv_blocks * BLOCK_TOKENS * needs.token_bytes(spec.first_layer, spec.end_layer)
        sizes["work"] = needs.workspace_bytes
    sizes["free"] = max(0, _usable_bytes(machine) - sum(sizes.values()))
    sizes["other"] = max(0, _total_bytes(machine) - sum(sizes.values()))
    return tuple(PicturePart(kind, size_bytes) for kind, size_bytes in sizes.items() if size_bytes > 0)


def _wires(topology: Topology, pipeline: Sequence[Tank]) -> tuple[Wire, ...]:
    """Return the links between neighbours, and the one back to the coordinator; none for one machine."""
    if len(pipeline) < 2:
        return ()
    pairs = zip(pipeline, [*pipeline[1:], pipeline[0]], strict=True)
    return tuple(_wire(topology, a, b, is_back=b is pipeline[0]) for a, b in pairs)


def duration(seconds: float) -> str:
    """Return a link's delay in milliseconds."""
    return "< 0.1 ms" if seconds < 0.0001 else f"{seconds * 1000:.1f} ms"


def rate(bytes_per_s: float) -> str:
    """Return the rate. Between processes of one machine this measures memory speed, so it is capped."""
    mbit = bytes_per_s * 8 / 1e6
    if mbit > _MBIT_MAX:
        return f"> {_MBIT_MAX // 1000} Gbit/s"
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


def is_slow(link: Link) -> bool:
    return link.delay_s > SLOW_DELAY_S or link.bytes_per_s < SLOW_BYTES_PER_S


def _wire(topology: Topology, sender: Tank, receiver: Tank, *, is_back: bool) -> Wire:
    link = topology.network.link(sender.node_id, receiver.node_id)
    known = link.is_measured
    mark: LinkMark = ""
    if any(warning.cause == "wifi" for tank in (sender, receiver) for warning in tank.warnings):
        mark = "Wi-Fi"
    elif known and is_slow(link):
        mark = "slow"
    return Wire(
        sender=sender.name,
        receiver=receiver.name,
        delay_s=link.delay_s if known else None,
        bytes_per_s=link.bytes_per_s if known else None,
        mark=mark,
        is_back=is_back,
    )
