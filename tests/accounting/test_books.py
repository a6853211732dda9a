"""The books against the model: whatever happens in whichever order, both must answer and contain the same."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from accounting.ledger.balances import balances
from accounting.ledger.postings import Posting
from accounting.rules import burst, grants, local
from accounting.rules.held import CloudBill, Hold
from accounting.spending.holds import HOLD_GRACE_NS
from gateway.database import open_engine
from tests.accounting.books import ANSWER_S, MINUTE_NS, Books, outcome, usage
from tests.accounting.model import Model
from tests.databases import Databases, Kind

USERS = ("ann", "bob")
LANES = ("cluster", "pool")
RECENT = 4


@dataclass(frozen=True)
class Wish:
    """One thing to try; the numbers are turned into names and amounts that make sense at that moment."""

    what: Literal["credit", "place", "capture", "capture_late", "release", "use", "again", "tampered"]
    who: int
    pick: int
    amount: int
    percent: int


@dataclass(frozen=True)
class Attempt:
    """An event as both sides see it: what the model is asked, and what is sent to the books."""

    ask: Callable[[Model], str]
    posting: Posting
    hold: Hold | None = None


WISHES = st.builds(
    Wish,
    what=st.sampled_from(
        ("credit", "place", "place", "capture", "capture", "capture_late", "release", "use", "again", "tampered")
    ),
    who=st.integers(0, 1),
    pick=st.integers(0, 10**6),
    amount=st.one_of(st.integers(1, 1000), st.integers(1, 10**15)),
    percent=st.sampled_from((0, 1, 50, 100, 150)),
)


class BooksMachine(RuleBasedStateMachine):
    """Sends groups of events at once, so that they are committed together, and compares every answer."""

    def __init__(self, databases: Databases, kind: Kind) -> None:
        super().__init__()
        self._open = ExitStack()
        engine = open_engine(self._open.enter_context(databases.database(kind)))
        self._open.callback(engine.dispose)
        self.books = self._open.enter_context(Books(engine))
        self.model = Model()
        self.attempts: list[Attempt] = []
        self.held: list[Hold] = []

    def teardown(self) -> None:
        # A hold that was denied and is tried again after its time is born expired: the next sweep's, not an error.
        self.books.reaper.sweep(ANSWER_S)
        found = self.books.findings()
        self._open.close()
        assert found == []

    @initialize()
    def ann_is_rich(self) -> None:
        """So that most of her holds are granted, and most of Bob's are not."""
        self.send([Wish("credit", who=0, pick=0, amount=10**15, percent=0)])

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=12))
    def send(self, wishes: list[Wish]) -> None:
        sent = []
        for wish in wishes:
            attempt = self._attempt(wish)
            if attempt is not None:
                self.attempts.append(attempt)
                sent.append((attempt, self.books.poster.submit(attempt.posting)))
        for attempt, future in sent:
            assert outcome(future) == attempt.ask(self.model), attempt.posting
            if attempt.hold is not None and future.exception() is None:
                self.held.append(replace(attempt.hold, pending_seq=future.result().transfer_seqs[0]))

    @rule(minutes=st.sampled_from((0, 1, 3)))
    def wait_and_sweep(self, minutes: int) -> None:
        self.books.now_ns += minutes * MINUTE_NS
        assert self.books.reaper.sweep(ANSWER_S) == self.model.sweep(self.books.now_ns)

    @invariant()
    def balances_agree(self) -> None:
        with self.books.read() as session:
            found = {each.code: (each.posted_nano, each.held_nano) for each in balances(session)}
        assert {code: amounts for code, amounts in found.items() if any(amounts)} == self.model.accounts()

    def _attempt(self, wish: Wish) -> Attempt | None:
        user_id, name = USERS[wish.who], f"n{len(self.attempts)}"
        match wish.what:
            case "credit":
                return _credit(name, user_id, wish.amount)
            case "place":
                return _place(name, user_id, wish.amount, self.books.now_ns + MINUTE_NS)
            case "use":
                return _use(name, "lab", LANES[wish.who], wish.amount * min(wish.percent, 1))
            case "again" | "tampered" if self.attempts:
                earlier = self.attempts[wish.pick % len(self.attempts)]
                return earlier if wish.what == "again" else _tampered(earlier, wish.amount)
            case "capture" | "capture_late" | "release" if self.held:
                return _resolve(wish, self.held[-1 - wish.pick % min(len(self.held), RECENT)])
        return None


def _credit(credit_id: str, user_id: str, amount: int) -> Attempt:
    posting = grants.manual_credit(credit_id, user_id, amount, "model")
    return Attempt(lambda model: model.credit(credit_id, user_id, amount), posting)


def _place(request_id: str, user_id: str, amount: int, deadline_ns: int) -> Attempt:
    expires_ns = deadline_ns + HOLD_GRACE_NS
    return Attempt(
        lambda model: model.place(request_id, user_id, amount, expires_ns),
        burst.hold(request_id, user_id, amount, expires_ns),
        Hold(request_id, user_id, amount, 0, expires_ns),
    )


def _use(request_id: str, department: str, lane: str, amount: int) -> Attempt:
    record = usage(request_id, department=department, lane=lane, compute_nano=amount)
    return Attempt(lambda model: model.use(request_id, department, lane, amount), local.local_use(record))


def _resolve(wish: Wish, held: Hold) -> Attempt:
    if wish.what == "release":
        return Attempt(lambda model: model.release(held.request_id), burst.release(held))
    charge = min(held.amount_nano * wish.percent // 100, 10**15)
    cost = min(wish.amount, 10**15) if wish.pick % 2 else charge // 2
    bill, record = CloudBill("acme", charge, cost), usage(held.request_id, lane="cloud", provider="acme")
    if wish.what == "capture":
        posting = burst.capture(held, bill, record)
        return Attempt(lambda model: model.capture(held.request_id, charge, cost), posting)
    covered = wish.amount if wish.pick % 3 else 0
    posting = burst.late_capture(held, bill, record, covered_nano=covered)
    return Attempt(lambda model: model.capture_late(held.request_id, charge, cost, covered), posting)


def _tampered(earlier: Attempt, amount: int) -> Attempt:
    """The key of an earlier event with the contents of another: what a buggy or hostile caller might send."""
    key = earlier.posting.idem_key
    forged = replace(grants.manual_credit("forged", "eve", amount, "tampered"), idem_key=key)
    return Attempt(lambda model: model.forged(key, "eve", amount), forged)


def _run(databases: Databases, kind: Kind, examples: int, steps: int) -> None:
    class Machine(BooksMachine):
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


def test_books_agree_with_the_model(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=30 if kind == "sqlite" else 12, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_books_agree_with_the_model_for_long(databases: Databases, kind: Kind) -> None:
    _run(databases, kind, examples=500 if kind == "sqlite" else 200, steps=100)
