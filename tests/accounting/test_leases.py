"""Leases: many requests on one hold, in two processes at once, and no credit promised twice or kept for nobody."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from accounting.errors import DatabaseFailing, HoldExpired, InsufficientCredit
from accounting.ledger.journal import Failpoint
from accounting.ledger.postings import Posted
from accounting.rules.held import CloudBill, Hold
from accounting.spending.lease import LEASE_NS
from accounting.spending.leases import Leases
from gateway.database import open_engine
from tests.accounting.books import ANSWER_S, START_NS, Books, usage
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
        self.books = [self._open.enter_context(Books(engine)) for _ in PROCESSES]
        self.leases = [Leases(each.poster, clock_ns=lambda: self.books[0].now_ns) for each in self.books]
        self.model = LeaseModel()
        self.running: list[tuple[int, Hold]] = []
        self.captured: list[Future[Posted | None]] = []
        self.numbers = itertools.count()

    def teardown(self) -> None:
        for leases in self.leases:
            leases.turn(is_closing=True)
        self.books[0].now_ns += 2 * LEASE_NS
        self.books[0].reaper.sweep(ANSWER_S)
        held = [self.books[0].balance(f"user:{user}:paid").held_nano for user in USERS]
        found = self.books[0].findings()
        self._open.close()
        assert (held, found) == ([0, 0], [])

    def amount_of(self, process: int, user_id: str) -> int:
        lease = self.leases[process]._leases.get(user_id)
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
        self.books[0].credit(user_id, amount)
        self.model.credits[user_id] += amount

    def hold(self, process: int, user_id: str, amount: int) -> None:
        request_id = f"r{next(self.numbers)}"
        placed = self.leases[process].hold(request_id, user_id, amount)
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
        for books in self.books:
            books.now_ns += seconds * 10**9
        for process in PROCESSES:
            self.turn(process)
        assert self.books[0].reaper.sweep(ANSWER_S) == 0

    def die(self, process: int) -> None:
        """As after kill -9: nothing is given back before the reaper does it, and what ran is not booked.

        The other process slept as long, and finds its lease gone.
        """
        self.leases[process] = Leases(self.books[process].poster, clock_ns=lambda: self.books[0].now_ns)
        for books in self.books:
            books.now_ns += LEASE_NS + 1
        self.running = []
        self.captured = []
        self.books[0].reaper.sweep(ANSWER_S)
        for each, user_id in itertools.product(PROCESSES, USERS):
            self.model.lose(each, user_id)
        self.turn(1 - process)

    def check(self) -> None:
        for user_id in USERS:
            found = self.books[0].balance(f"user:{user_id}:paid")
            assert found.posted_nano == self.model.credits[user_id] - self.model.charged[user_id]
            assert found.available_nano >= 0
            kept = sum(self.amount_of(process, user_id) for process in PROCESSES)
            assert found.held_nano == kept
        assert all(future.exception(0) is None for future in self.captured if future.done())


def _run(databases: Databases, kind: Kind, examples: int) -> None:
    class Machine(LeaseMachine):
        def __init__(self) -> None:
            super().__init__(databases, kind)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=10,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_leases_agree_with_the_model(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=25 if kind == "sqlite" else 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_leases_agree_with_the_model_for_long(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=400 if kind == "sqlite" else 100)


@pytest.fixture
def leases(books: Books) -> Iterator[Leases]:
    leases = Leases(books.poster)
    leases.start()
    yield leases
    leases.stop()


def result(placed: "Hold | Future[Hold]") -> Hold:
    return placed if isinstance(placed, Hold) else placed.result(ANSWER_S)


def test_of_200_at_once_exactly_as_many_are_served_as_the_credit_is_worth(books: Books, leases: Leases) -> None:
    """Half of them in another process."""
    books.credit("ann", 100 * 50)
    others = Leases(books.poster)
    others.start()
    start = threading.Barrier(20)
    served: list[Hold] = []

    def ask(number: int) -> None:
        mine = (leases, others)[number % 2]
        start.wait(ANSWER_S)
        for turn in range(10):
            try:
                held = result(mine.hold(f"r{number}-{turn}", "ann", 50))
            except InsufficientCredit:
                continue
            served.append(held)
            mine.end(held, 50)
            mine.capture(held, CloudBill("acme", 50, 40), usage(held.request_id, lane="cloud")).result(ANSWER_S)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ANSWER_S)
    others.stop()
    leases.stop()
    # What the one process keeps for requests to come may be missing at the other: no more than its slice.
    assert 100 - 16 <= len(served) <= 100
    assert books.balance("user:ann:paid").available_nano == 5000 - 50 * len(served)
    assert books.findings() == []


def test_an_event_whose_answer_was_lost_is_neither_repeated_nor_forgotten(engine: Engine) -> None:
    failures = itertools.repeat("after_commit", 4)

    def fail(reached: Failpoint) -> None:
        if is_away.is_set() and reached == "after_commit" and next(failures, None):
            raise OperationalError("commit", None, Exception("gone"))

    is_away = threading.Event()
    with Books(engine, failpoint=fail, attempts_max=1) as books:
        leases = Leases(books.poster, clock_ns=lambda: START_NS)
        books.credit("ann", 1000)
        asked = leases.hold("r1", "ann", 100)
        leases.turn()
        held = result(asked)
        is_away.set()
        leases.end(held, 60)
        captured = leases.capture(held, CloudBill("acme", 60, 40), usage("r1", lane="cloud"))
        assert not leases.turn()
        assert captured.exception(ANSWER_S)
        again = leases.capture(held, CloudBill("acme", 60, 40), usage("r1", lane="cloud"))
        is_away.clear()
        assert leases.turn()
        assert leases.turn()
        assert again.result(ANSWER_S) is None
        leases.turn(is_closing=True)
        assert books.balance("user:ann:paid").available_nano == 940
        assert books.findings() == []


def test_who_comes_while_the_books_are_away_is_told_so_at_once(engine: Engine) -> None:
    def fail(reached: Failpoint) -> None:
        if is_away.is_set():
            raise OperationalError("commit", None, Exception("gone"))

    is_away = threading.Event()
    with Books(engine, failpoint=fail, attempts_max=1) as books:
        leases = Leases(books.poster, clock_ns=lambda: START_NS)
        books.credit("ann", 1000)
        is_away.set()
        for number in range(3):
            asked = leases.hold(f"r{number}", "ann", 100)
            assert isinstance(asked, Future)
            assert not leases.turn()
            assert isinstance(asked.exception(0), DatabaseFailing)
        assert leases._draws == 0
        is_away.clear()
        assert leases.turn()
        asked = leases.hold("r9", "ann", 1000)
        assert leases.turn()
        assert result(asked).amount_nano == 1000


def test_a_lease_that_was_reaped_is_nothing_to_its_requests(books: Books) -> None:
    leases = Leases(books.poster, clock_ns=lambda: START_NS)
    books.credit("ann", 1000)
    asked = leases.hold("r1", "ann", 100)
    leases.turn()
    held = result(asked)
    books.now_ns += LEASE_NS + 1
    assert books.reaper.sweep(ANSWER_S) == 1
    captured = leases.capture(held, CloudBill("acme", 60, 40), usage("r1"))
    leases.turn()
    assert isinstance(captured.exception(ANSWER_S), HoldExpired)
    late = leases.capture(held, CloudBill("acme", 60, 40), usage("r1"))
    assert isinstance(late.exception(ANSWER_S), HoldExpired)
    asked = leases.hold("r2", "ann", 1000)
    leases.turn()
    assert result(asked).lease != held.lease
