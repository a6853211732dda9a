"""The state that the cluster's pages show, read from the controller at one moment."""

from dataclasses import dataclass

from cluster.control.topology import Topology
from cluster.controller import Controller
from cluster.trust.identity import NodeId
from gateway.console.figures.layout import Sketch, sketch
from gateway.console.figures.machines import MachineRow, machine_rows
from runtime.errors import NotFound

PICTURE_PARTS = {"cluster-drawing": "cluster/drawing.html", "cluster-table": "cluster/as_table.html"}
"""The live parts of pages that include `cluster/picture.html`; surrounding elements keep their state."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    topology: Topology
    cluster: Sketch
    machines: list[MachineRow]

    def row(self, node_id: str) -> MachineRow:
        """Return a machine's row. Raises NotFound."""
        found = next((row for row in self.machines if row.node_id == node_id), None)
        if found is None:
            raise NotFound("Machine not found. It may have been removed.")
        return found

    def name_of(self, node_id: NodeId) -> str:
        return next((row.name for row in self.machines if row.node_id == node_id), node_id[:6])


def cluster_state(controller: Controller) -> ClusterState:
    topology = controller.topology()
    model = controller.chat.model
    drawn = sketch(topology, model.card if model else None)
    return ClusterState(topology, drawn, machine_rows(controller.machines(), topology, drawn.picture))
