"""Two processes on one database, in every order of their turns: leases do what a simple model of them does."""

import itertools
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from accounting.errors import InsufficientCredit
from accounting.ledger.postings import Posted
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.lease import LEASE_NS
from accounting.spending.leases import Leases
from runtime.database import open_engine
from tests.accounting.ledgers import ANSWER_S, LedgerService, usage
from tests.accounting.machines import run_machine
from tests.accounting.model import LeaseModel
from tests.databases import Databases, Kind

USERS = ("ann", "bob")
PROCESSES = (0, 1)


@dataclass(frozen=True)
class Wish:
    """One thing to try; most are holds and ends, as in life."""

    what: Literal["credit", "hold", "end", "turn", "wait", "die"]
    process: int
    user_id: str
    amount: int
    pick: int
    percent: int


WISHES = st.builds(
    Wish,
    what=st.sampled_from(("hold",) * 10 + ("end",) * 8 + ("turn",) * 3 + ("credit", "wait", "wait", "die")),
    process=st.sampled_from(PROCESSES),
    user_id=st.sampled_from(("ann", "ann", "bob")),
    # Round numbers, so that credits are spent to the last nano now and then.
    amount=st.sampled_from((100, 200, 400)),
    pick=st.integers(0, 99),
    percent=st.sampled_from((0, 1, 50, 100, 150)),
)


class LeaseMachine(RuleBasedStateMachine):
    """Two processes on one database; each turn of a process's leases is a step, so that every order is tried."""

    def __init__(self, databases: Databases, kind: Kind) -> None:
        super().__init__()
        self._open = ExitStack()
        engine = open_engine(self._open.enter_context(databases.database(kind)))
        self._open.callback(engine.dispose)
        self.ledgers = [self._open.enter_context(LedgerService(engine)) for _ in PROCESSES]
        self.leases = [
            Leases(each.poster, each.read, clock_ns=lambda: self.ledgers[0].now_ns) for each in self.ledgers
        ]
        self.model = LeaseModel()
        self.running: list[tuple[int, Hold]] = []
        self.captured: list[Future[Posted | None]] = []
        self.numbers = itertools.count()

    def teardown(self) -> None:
        for leases in self.leases:
            leases.turn(is_closing=True)
        self.ledgers[0].now_ns += 2 * LEASE_NS
        self.ledgers[0].reaper.sweep(ANSWER_S)
        held = [self.ledgers[0].balance(f"user:{user}:paid").held_nano for user in USERS]
        found = self.ledgers[0].findings()
        self._open.close()
        assert (held, found) == ([0, 0], [])

    def amount_of(self, process: int, user_id: str) -> int:
        lease = self.leases[process]._leases.get(Payer(user_id))
        return lease.amount_nano if lease else 0

    @initialize()
    def ann_has_some(self) -> None:
        self.credit("ann", 1500)

    @rule(wishes=st.lists(WISHES, min_size=4, max_size=16))
    def act(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            match wish.what:
                case "credit":
                    self.credit(wish.user_id, wish.amount)
                case "hold":
                    self.hold(wish.process, wish.user_id, wish.amount)
                case "end":
                    self.end(wish.pick, wish.percent)
                case "turn":
                    self.turn(wish.process)
                case "wait":
                    self.wait((1, 6, 70)[wish.pick % 3])
                case "die":
                    self.die(wish.process)
            self.check()

    def credit(self, user_id: str, amount: int) -> None:
        self.ledgers[0].credit(user_id, amount)
        self.model.credits[user_id] += amount

    def hold(self, process: int, user_id: str, amount: int) -> None:
        request_id = f"r{next(self.numbers)}"
        placed = self.leases[process].hold(request_id, Payer(user_id), amount)
        if isinstance(placed, Future):
            self.turn(process)
            error = placed.exception(ANSWER_S)
            assert error is None or isinstance(error, InsufficientCredit)
            placed = placed.result() if error is None else placed
        kept_by_others = self.amount_of(1 - process, user_id)
        is_granted = self.model.place(process, user_id, request_id, amount, kept_by_others)
        assert isinstance(placed, Hold) == is_granted
        if isinstance(placed, Hold):
            self.running.append((process, placed))

    def end(self, pick: int, percent: int) -> None:
        if not self.running:
            return
        process, held = self.running.pop(pick % len(self.running))
        charge = held.amount_nano * percent // 100
        within = min(charge, held.amount_nano)
        bill = CloudBill("acme", charge, charge // 2) if charge else None
        self.leases[process].end(held, within)
        self.captured.append(self.leases[process].capture(held, bill, usage(held.request_id, lane="cloud")))
        self.model.end(process, held.user_id, held.request_id, within)

    def turn(self, process: int) -> None:
        assert self.leases[process].turn()
        for user_id in USERS:
            self.model.book(process, user_id)

    def wait(self, seconds: int) -> None:
        """Each process lives, and looks at its leases before they end."""
        for ledger in self.ledgers:
            ledger.now_ns += seconds * 10**9
        for process in PROCESSES:
            self.turn(process)
        assert self.ledgers[0].reaper.sweep(ANSWER_S) == 0

    def die(self, process: int) -> None:
        """As after kill -9: nothing is given back before the reaper does it, and what ran is not booked.

        The other process slept as long, and finds its lease gone.
        """
        self.leases[process] = Leases(
            self.ledgers[process].poster, self.ledgers[process].read, clock_ns=lambda: self.ledgers[0].now_ns
        )
        for ledger in self.ledgers:
            ledger.now_ns += LEASE_NS + 1
        self.running = []
        self.captured = []
        self.ledgers[0].reaper.sweep(ANSWER_S)
        for each, user_id in itertools.product(PROCESSES, USERS):
            self.model.lose(each, user_id)
        self.turn(1 - process)

    def check(self) -> None:
        for user_id in USERS:
            found = self.ledgers[0].balance(f"user:{user_id}:paid")
            assert found.posted_nano == self.model.credits[user_id] - self.model.charged[user_id]
            assert found.available_nano >= 0
            kept = sum(self.amount_of(process, user_id) for process in PROCESSES)
            assert found.held_nano == kept
        assert all(future.exception(0) is None for future in self.captured if future.done())


def test_leases_agree_with_the_model(databases: Databases, kind: Kind) -> None:
    run_machine(LeaseMachine, databases, kind, examples=6 if kind == "sqlite" else 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_leases_agree_with_the_model_for_long(databases: Databases, kind: Kind) -> None:
    run_machine(LeaseMachine, databases, kind, examples=400 if kind == "sqlite" else 100)
