"""The machines that keep a model's first and last layers: their configured names, and the machines behind them."""

from dataclasses import dataclass

from cluster.errors import MachineUnknown
from cluster.plans.planned import Pin
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineBook


@dataclass(frozen=True, slots=True)
class Owners:
    """Names, ids or beginnings of ids. The first and last `layers` layers stay with these machines."""

    names: tuple[str, ...]
    layers: int = 1

    def pin(self, book: MachineBook) -> tuple[Pin, tuple[str, ...]]:
        """Return the pinned machines, and a sentence for each unknown name.

        Raise MachineUnknown if all are unknown. An unknown machine may hold nothing that only owners may hold, so
        the rest is as safe as without its name.
        """
        node_ids: set[NodeId] = set()
        unknown = []
        for name in self.names:
            try:
                node_ids.add(book.find(name))
            except MachineUnknown as error:
                unknown.append(f"cluster.owners: {error}")
        if not node_ids:
            raise MachineUnknown("; ".join(unknown))
        return Pin(frozenset(node_ids), self.layers, self.layers), tuple(unknown)
