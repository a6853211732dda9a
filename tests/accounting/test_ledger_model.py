"""The ledger against the model over every rule: in any order of events, both agree."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runtime.database import open_engine
from tests.accounting.economy.credits import credit, pool_credit
from tests.accounting.economy.wishes import WEIGHTS, WISHES
from tests.accounting.economy.world import Wish, World
from tests.accounting.ledgers import LedgerService
from tests.databases import Databases, Kind

GROUP = 120
ENOUGH = 50_000
"""So many operations that everything which can happen does, the rarest things too."""
DENIALS = {"InsufficientCredit", "IdempotencyConflict", "AlreadyResolved", "HoldNotFound", "HoldExpired"}


@contextmanager
def _world(databases: Databases, kind: Kind, seed: int) -> Iterator[World]:
    with databases.database(kind) as dsn:
        engine = open_engine(dsn)
        try:
            with LedgerService(engine) as ledger:
                world = World(ledger, random.Random(seed))
                world.send([wish(world) for wish in (credit, pool_credit) for _ in range(20)])
                yield world
        finally:
            engine.dispose()


class LedgerMachine(RuleBasedStateMachine):
    """Short lives that hypothesis thinks of, looked at after every step."""

    def __init__(self, databases: Databases, kind: Kind) -> None:
        super().__init__()
        self._databases, self._kind = databases, kind
        self._open = ExitStack()

    @initialize(seed=st.integers(0, 10**6))
    def begin(self, seed: int) -> None:
        self.world = self._open.enter_context(_world(self._databases, self._kind, seed))

    def teardown(self) -> None:
        with self._open:
            self.world.wait(4)
            self.world.check(deep=True)

    @rule(wishes=st.lists(st.sampled_from(WISHES), min_size=4, max_size=24))
    def send(self, wishes: list[Wish]) -> None:
        self.world.send([wish(self.world) for wish in wishes])

    @rule(minutes=st.sampled_from((0, 1, 3)))
    def wait(self, minutes: int) -> None:
        self.world.wait(minutes)

    @invariant()
    def agrees(self) -> None:
        self.world.check()


def _run(databases: Databases, kind: Kind, examples: int, steps: int) -> None:
    class Machine(LedgerMachine):
        def __init__(self) -> None:
            super().__init__(databases, kind)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            # Shrinking would take minutes against real databases, and a failure is readable without it.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )


def _live(databases: Databases, kind: Kind, operations: int, seed: int) -> None:
    """One long life: that many things are tried, in groups that share transactions."""
    with _world(databases, kind, seed) as world:
        done: set[Wish] = set()
        sent = groups = 0
        while sent < operations:
            wishes = world.chance.choices(WISHES, tuple(WEIGHTS.values()), k=GROUP)
            attempts = [(wish, attempt) for wish in wishes if (attempt := wish(world)) is not None]
            world.send([attempt for _, attempt in attempts])
            done |= {wish for wish, attempt in attempts if attempt.posting.idem_key in world.model.keys}
            sent, groups = sent + len(attempts), groups + 1
            if groups % 5 == 0:
                world.wait(world.chance.choice((0, 0, 1, 2, 4)))
            if groups % 20 == 0:
                world.check()
        world.wait(4)
        world.check(deep=True)
        assert world.answers.keys() == DENIALS | {"posted", "replayed"}
        if operations >= ENOUGH:
            assert [wish.__qualname__ for wish in WISHES if wish not in done] == [], "it can happen and never did"


def test_the_ledger_agrees_with_the_model(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=5 if kind == "sqlite" else 2, steps=12)


def test_a_long_life_agrees_with_the_model(databases: Databases, kind: Kind) -> None:
    """Long enough for every denial; `make test-slow` lives on until everything has happened."""
    _live(databases, kind, 1_500, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_ledger_agrees_with_the_model_for_long(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=500 if kind == "sqlite" else 200, steps=100)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_a_longer_life_everything_happens(databases: Databases, kind: Kind) -> None:
    _live(databases, kind, ENOUGH if kind == "sqlite" else 10_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_very_long_life_agrees_with_the_model(databases: Databases, kind: Kind) -> None:
    _live(databases, kind, 1_000_000 if kind == "sqlite" else 200_000, seed=2)
