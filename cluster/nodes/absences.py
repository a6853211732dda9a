"""Local nodes that should run and do not, and why. Admins read it while the nodes are started again."""

from cluster.events import Chronicle


class Absences:
    """The reason for each absent node. A node is in `by_name` from its end until it is connected again."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self.by_name: dict[str, str] = {}

    def note(self, name: str, why: str) -> None:
        """Record why a local node does not run."""
        self.by_name[name] = why
        self._chronicle.note("lost", f"{name} {why}")

    def end(self, name: str) -> None:
        """Forget a node that is connected again or should no longer run."""
        self.by_name.pop(name, None)

    @property
    def words(self) -> str:
        """All absences in one sentence; empty if there are none."""
        return "; ".join(f"{name} {why}" for name, why in self.by_name.items())
