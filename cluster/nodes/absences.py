"""Local nodes that should run and do not, and why: what people read while they are started again."""

from cluster.events import Chronicle


class Absences:
    """`by_name` has a node from when it ends until it is connected again, under its own name."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self.by_name: dict[str, str] = {}

    def note(self, name: str, why: str) -> None:
        """A local node does not run."""
        self.by_name[name] = why
        self._chronicle.note("lost", f"{name} {why}")

    def end(self, name: str) -> None:
        """The node is connected again, or is not to run any more."""
        self.by_name.pop(name, None)

    @property
    def words(self) -> str:
        """All of them in one sentence, empty where there is none."""
        return "; ".join(f"{name} {why}" for name, why in self.by_name.items())
