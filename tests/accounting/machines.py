"""How hypothesis runs a machine whose steps are turns of processes on one database, and what may happen in one."""

from collections.abc import Callable
from concurrent.futures import Future

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from accounting.ledger.postings import Posted, Posting
from accounting.ledger.writer import Writer
from tests.databases import Databases, Kind


class Interrupted:
    """A writer on whose way things happen: each of `meanwhile` once, while an event is not answered yet."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.meanwhile: list[Callable[[], None]] = []

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        meanwhile, self.meanwhile = self.meanwhile, []
        for happen in meanwhile:
            happen()
        return self._writer.submit(posting, urgent=urgent)


def run_machine(
    machine: Callable[[Databases, Kind], RuleBasedStateMachine], databases: Databases, kind: Kind, examples: int
) -> None:
    """Without shrinking: an example takes seconds."""
    run_state_machine_as_test(
        lambda: machine(databases, kind),  # type: ignore[arg-type]  # any factory will do, as its docstring says
        settings=settings(
            max_examples=examples,
            stateful_step_count=10,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
