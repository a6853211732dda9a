"""What the machines' stage processes have loaded, as far as the controller knows: it need not be loaded again."""

from dataclasses import dataclass, field

from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import Plan
from cluster.trust.identity import NodeId


@dataclass(slots=True)
class Holdings:
    """Stages in the last ring and on shelves. Whoever is wrong here loads again: the processes know it better.

    `head` is the machine whose head counts on the keys and values of the stages in `serving`.
    """

    head: NodeId | None = None
    serving: dict[NodeId, StageSpec] = field(default_factory=dict)
    shelved: dict[NodeId, set[StageSpec]] = field(default_factory=dict)

    def has(self, node_id: NodeId, spec: StageSpec) -> bool:
        """Whether this stage needs no loading there."""
        return self.serving.get(node_id) == spec or spec in self.shelved.get(node_id, ())

    def keeps_kv(self, head: NodeId, node_id: NodeId, spec: StageSpec) -> bool:
        return head == self.head and self.serving.get(node_id) == spec

    def assign(self, node_id: NodeId, spec: StageSpec) -> None:
        """The stage is loaded anew or taken from the shelf; for another cut than before the shelf is cleared."""
        if self.serving.pop(node_id, None) != spec:
            shelf = self.shelved.pop(node_id, set())
            if spec in shelf:
                self.shelved[node_id] = shelf - {spec}

    def serve(self, head: NodeId, plan: Plan) -> None:
        self.head = head
        self.serving = {stage.member.node_id: stage.spec for stage in plan.stages}

    def forget(self, node_id: NodeId) -> None:
        """Its stage process is gone."""
        self.serving.pop(node_id, None)
        self.shelved.pop(node_id, None)
