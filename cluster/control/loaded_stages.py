"""The layers that the machines' stage processes have loaded, as far as the controller knows."""

from dataclasses import dataclass, field

from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import Plan
from cluster.trust.identity import NodeId


@dataclass(slots=True)
class LoadedStages:
    """Stages in the last pipeline and on shelves, which need no loading. A wrong entry only causes loading.

    `coordinator` is the machine whose coordinator relies on the KV cache of the stages in `serving`.
    """

    coordinator: NodeId | None = None
    serving: dict[NodeId, StageSpec] = field(default_factory=dict)
    shelved: dict[NodeId, set[StageSpec]] = field(default_factory=dict)

    def has(self, node_id: NodeId, spec: StageSpec) -> bool:
        """Tell whether this stage needs no loading on that machine."""
        return self.serving.get(node_id) == spec or spec in self.shelved.get(node_id, ())

    def keeps_kv(self, coordinator: NodeId, node_id: NodeId, spec: StageSpec) -> bool:
        """Tell whether this stage still has the KV cache that the coordinator relies on."""
        return coordinator == self.coordinator and self.serving.get(node_id) == spec

    def assign(self, node_id: NodeId, spec: StageSpec) -> None:
        """Note that the stage is loaded again or taken from the shelf. A changed partition clears the shelf."""
        if self.serving.pop(node_id, None) != spec:
            shelf = self.shelved.pop(node_id, set())
            if spec in shelf:
                self.shelved[node_id] = shelf - {spec}

    def serve(self, coordinator: NodeId, plan: Plan) -> None:
        self.coordinator = coordinator
        self.serving = {stage.member.node_id: stage.spec for stage in plan.stages}

    def clear(self) -> None:
        """Note that every machine has unloaded the deployment."""
        self.coordinator = None
        self.serving.clear()
        self.shelved.clear()

    def forget(self, node_id: NodeId) -> None:
        """Note that a machine's stage process is gone."""
        self.serving.pop(node_id, None)
        self.shelved.pop(node_id, None)
