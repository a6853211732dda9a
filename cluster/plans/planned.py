"""A plan as data: the machines that take part, the layers of each stage, and the expected speed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from cluster.machine import Machine
from cluster.models.layer_cost import Precision
from cluster.models.stage_spec import StageSpec
from cluster.plans.forecast import Prediction
from cluster.trust.identity import NodeId

Goal = Literal["latency", "throughput"]
"""The least time per token of one stream, or the most tokens per second of many."""


class Member(Struct, frozen=True):
    """A machine that the plan may use."""

    node_id: NodeId
    name: str
    machine: Machine


@dataclass(frozen=True, slots=True)
class Pin:
    """The only machines that may see more than activations: they hold the embedding, first and last layers."""

    owners: frozenset[NodeId]
    first_layers: int = 1
    last_layers: int = 1


class PlannedStage(Struct, frozen=True):
    """A stage on its machine, with its weights in bytes and the reason in words."""

    member: Member
    spec: StageSpec
    weight_bytes: int
    reason: str

    def naming(self, names: Mapping[NodeId, str]) -> "PlannedStage":
        """Return the same stage with its machine renamed."""
        name = names.get(self.member.node_id, self.member.name)
        return self if name == self.member.name else replace(self, member=replace(self.member, name=name))


class Plan(Struct, frozen=True, kw_only=True):
    """Stages in pipeline order, the KV cache they share, and the reasons in words.

    `standbys` hold copies of stages on machines outside the pipeline. `considered` are all machines that the plan
    was made from, `stages_min` the requested minimum of stages.
    """

    stages: tuple[PlannedStage, ...]
    precision: Precision
    kv_blocks: int
    slots: int
    reasons: tuple[str, ...]
    standbys: tuple[PlannedStage, ...] = ()
    predicted: Prediction | None = None
    goal: Goal = "throughput"
    stages_min: int = 1
    considered: tuple[NodeId, ...] = ()

    @property
    def layer_placement(self) -> tuple[tuple[NodeId, int], ...]:
        """Return each stage's machine and the end of its layers.

        A new pipeline with the same layer placement gains nothing.
        """
        return tuple((stage.member.node_id, stage.spec.end_layer) for stage in self.stages)

    def naming(self, names: Mapping[NodeId, str]) -> "Plan":
        """Return the same plan with its machines renamed, in its sentences too."""
        planned = (*self.stages, *self.standbys)
        called = {stage.member.name: names.get(stage.member.node_id, stage.member.name) for stage in planned}
        if all(before == now for before, now in called.items()):
            return self
        written = re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, called)) + r")(?![\w-])")

        def reworded(text: str) -> str:
            return written.sub(lambda match: called[match[0]], text)

        def renamed(stage: PlannedStage) -> PlannedStage:
            return replace(stage.naming(names), reason=reworded(stage.reason))

        predicted = self.predicted
        if predicted:
            predicted = replace(predicted, assumed=tuple(map(reworded, predicted.assumed)))
        return replace(
            self,
            predicted=predicted,
            stages=tuple(map(renamed, self.stages)),
            standbys=tuple(map(renamed, self.standbys)),
            reasons=tuple(map(reworded, self.reasons)),
        )

    @property
    def context_tokens(self) -> int:
        """Return the longest context (prompt plus answer) that the pipeline can hold, in tokens."""
        return self.stages[0].spec.context_tokens

    @property
    def pipeline(self) -> tuple[NodeId, ...]:
        return tuple(stage.member.node_id for stage in self.stages)
