"""The state of a cluster at one moment, for display."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.control.readiness import Status
from cluster.control.specs import PRIORITY, DeploymentKind
from cluster.machine import Condition
from cluster.plans.machine_warnings import MachineWarning
from cluster.plans.network import Network
from cluster.plans.plan import Member, Plan, PlannedStage
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineRecord


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One model of the cluster: its name for callers, its state, and the machines that hold it.

    `source` is its folder's name or Hugging Face id. `running` counts the answers in progress, `waiting` the requests
    that wait for it. `last_used_s` and `loaded_s` say how many seconds ago it last answered and was loaded; None if
    never. `load_s` is the expected time to load it, None if that is unknown.
    """

    model: str
    source: str
    kind: DeploymentKind
    status: Status
    reason: str
    epoch: int
    precision: str | None = None
    context_tokens: int | None = None
    machines: tuple[NodeId, ...] = ()
    priority: int = PRIORITY
    idle_s: float | None = None
    is_pinned: bool = False
    running: int = 0
    waiting: int = 0
    last_used_s: float | None = None
    loaded_s: float | None = None
    load_s: float | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The machines, the first model's pipeline over some of them, and all models in `deployments`.

    `model` is its name for callers; `model_source` is its folder's name or Hugging Face id.
    """

    status: Status
    reason: str
    epoch: int
    model: str | None
    members: tuple[Member, ...]
    plan: Plan | None
    coordinator: NodeId | None
    round_trip_ms: float | None
    # Copies of the pipeline's stages that are loaded on machines outside it.
    standbys: tuple[PlannedStage, ...] = ()
    model_source: str | None = None
    deployments: tuple[DeploymentState, ...] = ()
    warnings: Mapping[NodeId, tuple[MachineWarning, ...]] = field(default_factory=dict)
    # Links that have been measured.
    network: Network = field(default_factory=Network)
    conditions: Mapping[NodeId, Condition] = field(default_factory=dict)
    # Machines whose work must move elsewhere.
    draining: frozenset[NodeId] = frozenset()
    # Local nodes that do not run, by their own names, and why.
    absences: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """The plan that serves, the plan after a change, and the difference in words."""

    now: Plan | None
    then: Plan | None
    change: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MachineState:
    """A machine of the book, and whether it is connected."""

    node_id: NodeId
    record: MachineRecord
    present: bool
