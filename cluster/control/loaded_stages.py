"""The layers that the machines' stage processes have loaded, as far as the controller knows."""

from dataclasses import dataclass, field

from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import Plan
from cluster.trust.identity import NodeId


@dataclass(slots=True)
class Holdings:
    """Stages in the last ring and on shelves. They need no loading; a wrong entry only causes loading.

    `head` is the machine whose head counts on the KV cache of the stages in `serving`.
    """

    head: NodeId | None = None
    serving: dict[NodeId, StageSpec] = field(default_factory=dict)
    shelved: dict[NodeId, set[StageSpec]] = field(default_factory=dict)

    def has(self, node_id: NodeId, spec: StageSpec) -> bool:
        """Tell whether this stage needs no loading on that machine."""
        return self.serving.get(node_id) == spec or spec in self.shelved.get(node_id, ())

    def keeps_kv(self, head: NodeId, node_id: NodeId, spec: StageSpec) -> bool:
        """Tell whether this stage still has the KV cache that the head counts on."""
        return head == self.head and self.serving.get(node_id) == spec

    def assign(self, node_id: NodeId, spec: StageSpec) -> None:
        """Note that the stage is loaded again or taken from the shelf. A changed cut clears the shelf."""
        if self.serving.pop(node_id, None) != spec:
            shelf = self.shelved.pop(node_id, set())
            if spec in shelf:
                self.shelved[node_id] = shelf - {spec}

    def serve(self, head: NodeId, plan: Plan) -> None:
        self.head = head
        self.serving = {stage.member.node_id: stage.spec for stage in plan.stages}

    def forget(self, node_id: NodeId) -> None:
        """Note that a machine's stage process is gone."""
        self.serving.pop(node_id, None)
        self.shelved.pop(node_id, None)
