"""Whose machines keep a model's ends: as the operator calls them, and who that is just now."""

from dataclasses import dataclass

from cluster.errors import MachineUnknown
from cluster.plans.planned import Pin
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineBook


@dataclass(frozen=True, slots=True)
class Owners:
    """Names, ids or their beginnings; `layers` first and last layers stay with these machines."""

    names: tuple[str, ...]
    layers: int = 1

    def pin(self, book: MachineBook) -> tuple[Pin, tuple[str, ...]]:
        """Those that are in the book, and in words who is not. Raises MachineUnknown where nobody is.

        Whoever cannot be found may hold nothing that only owners may: the rest is as safe as if it were not named.
        """
        found: set[NodeId] = set()
        unknown = []
        for name in self.names:
            try:
                found.add(book.find(name))
            except MachineUnknown as error:
                unknown.append(f"cluster.owners: {error}")
        if not found:
            raise MachineUnknown("; ".join(unknown))
        return Pin(frozenset(found), self.layers, self.layers), tuple(unknown)
