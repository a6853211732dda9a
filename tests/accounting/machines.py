"""How hypothesis runs a machine whose steps are turns of processes on one database."""

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.databases import Databases, Kind


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
