"""The one writer: groups, denials, replays, failures of the database, start and stop."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, LedgerBusy, PosterStopped
from accounting.ledger.journal import Failpoint
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted
from accounting.rules import burst, grants, local
from accounting.rules.held import CloudBill
from runtime.database import write_sessions
from tests.accounting.ledgers import ANSWER_S, LedgerService, outcomes, usage

BILL = CloudBill("acme", charge_nano=60, cost_nano=40)


class Gate:
    """Keeps the writer inside a transaction until it is opened, so that a test decides what its next group is."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, place: Failpoint) -> None:
        if place == "begun" and not self.reached.is_set():
            self.reached.set()
            assert self._opened.wait(ANSWER_S)

    def open(self) -> None:
        self._opened.set()


def test_a_denial_does_not_sink_its_group(engine: Engine) -> None:
    gate = Gate()
    with LedgerService(engine, failpoint=gate) as ledger:
        first = ledger.poster.submit(grants.manual_credit("c1", "ann", 100, "test"))
        assert gate.reached.wait(ANSWER_S)
        replay, tampered = "c1", grants.manual_credit("c1", "ann", 101, "test")
        group = [
            burst.hold("r1", "ann", 60, ledger.now_ns),
            burst.hold("r2", "ann", 60, ledger.now_ns),
            grants.manual_credit(replay, "ann", 100, "test"),
            tampered,
            burst.hold("r3", "ann", 40, ledger.now_ns),
            local.local_use(usage("r4", compute_nano=5)),
            local.local_use(usage("r4", compute_nano=5)),
            burst.hold("r5", "nobody", 1, ledger.now_ns),
        ]
        answers = [ledger.poster.submit(posting) for posting in group]
        gate.open()
        assert outcomes([first, *answers]) == [
            "posted",
            "posted",
            "InsufficientCredit",
            "replayed",
            "IdempotencyConflict",
            "posted",
            "posted",
            "replayed",
            "InsufficientCredit",
        ]
        assert answers[2].result() == Posted(first.result().event_seq, first.result().transfer_seqs, replayed=True)
        assert answers[6].result().event_seq == answers[5].result().event_seq
        assert ledger.balance("user:ann:paid").available_nano == 0
        assert ledger.findings() == []


def test_what_comes_later_in_a_group_pays_for_nothing_before_it(engine: Engine) -> None:
    gate = Gate()
    with LedgerService(engine, failpoint=gate) as ledger:
        first = ledger.poster.submit(grants.manual_credit("c1", "ann", 100, "test"))
        assert gate.reached.wait(ANSWER_S)
        group = [
            burst.hold("r1", "bob", 60, ledger.now_ns),
            grants.manual_credit("c2", "bob", 60, "test"),
            burst.hold("r2", "bob", 60, ledger.now_ns),
            burst.hold("r3", "bob", 1, ledger.now_ns),
        ]
        answers = [ledger.poster.submit(posting) for posting in group]
        gate.open()
        expected = ["posted", "InsufficientCredit", "posted", "posted", "InsufficientCredit"]
        assert outcomes([first, *answers]) == expected


def test_a_denial_costs_its_group_two_tries_and_not_one_for_each_event(engine: Engine) -> None:
    gate, passed = Gate(), list[Failpoint]()

    def pass_by(place: Failpoint) -> None:
        passed.append(place)
        gate(place)

    with LedgerService(engine, failpoint=pass_by) as ledger:
        first = ledger.poster.submit(grants.manual_credit("c1", "ann", 100, "test"))
        assert gate.reached.wait(ANSWER_S)
        users = ["ann"] * 40 + ["nobody"] * 3 + ["ann"] * 40
        held = [ledger.poster.submit(burst.hold(f"r{n}", user, 1, ledger.now_ns)) for n, user in enumerate(users)]
        gate.open()
        assert outcomes([first, *held]).count("posted") == 1 + 80
    # The first event, the group as it came, and its two parts without the denied ones between.
    assert passed.count("accounts_opened") == 4


def test_a_denial_says_what_is_missing(ledger: LedgerService) -> None:
    ledger.credit("ann", 100)
    ledger.hold("r1", "ann", 70)
    error = ledger.poster.submit(burst.hold("r2", "ann", 31, ledger.now_ns)).exception(ANSWER_S)
    assert vars(error) == {"account": "user:ann:paid", "needed_nano": 31, "available_nano": 30}


@pytest.mark.parametrize("place", ["begun", "transfers_inserted", "after_commit"])
def test_a_database_that_fails_for_a_moment_is_asked_again(engine: Engine, place: Failpoint) -> None:
    failures = iter([place])

    def fail_once(reached: Failpoint) -> None:
        if reached == place and next(failures, None):
            raise OperationalError("select 1", None, Exception("gone for a moment"))

    with LedgerService(engine, failpoint=fail_once) as ledger:
        posted = ledger.credit("ann", 100)
        assert posted.replayed == (place == "after_commit")
        assert ledger.balance("user:ann:paid").posted_nano == 100


def test_a_database_that_stays_away_fails_the_group_and_not_the_writer(engine: Engine) -> None:
    open_session = write_sessions(engine)
    down = threading.Event()

    def open_or_fail() -> Session:
        if down.is_set():
            raise OperationalError("connect", None, Exception("nobody there"))
        return open_session()

    poster = Poster(open_or_fail, attempts_max=2)
    poster.start()
    down.set()
    failed = poster.submit(grants.manual_credit("c1", "ann", 100, "test"))
    assert isinstance(failed.exception(ANSWER_S), DatabaseFailing)
    down.clear()
    assert poster.submit(grants.manual_credit("c1", "ann", 100, "test")).result(ANSWER_S) == Posted(1, (1,))
    assert poster.stop(ANSWER_S)


def test_a_full_queue_refuses_and_a_stop_books_what_waits(engine: Engine) -> None:
    gate = Gate()
    with LedgerService(engine, failpoint=gate, queue_max=3) as ledger:
        answers = [ledger.poster.submit(grants.manual_credit("c0", "ann", 1, "test"))]
        assert gate.reached.wait(ANSWER_S)
        answers += [ledger.poster.submit(grants.manual_credit(f"c{n}", "ann", 1, "test")) for n in (1, 2, 3)]
        with pytest.raises(LedgerBusy):
            ledger.poster.submit(grants.manual_credit("c4", "ann", 1, "test"))
        gate.open()
    assert outcomes(answers) == ["posted"] * 4
    with pytest.raises(PosterStopped):
        ledger.poster.submit(grants.manual_credit("c5", "ann", 1, "test"))


def test_what_is_not_urgent_goes_with_the_next_that_is_and_with_a_stop(engine: Engine) -> None:
    begun: list[Failpoint] = []
    with LedgerService(engine, patience_s=3600, linger_s=3600, failpoint=begun.append) as ledger:
        patient = [ledger.poster.submit(local.local_use(usage(f"r{n}")), urgent=False) for n in range(3)]
        assert ledger.poster.waiting == 3
        ledger.credit("ann", 100)
        assert outcomes(patient) == ["posted"] * 3
        assert begun.count("begun") == 1
        patient = [ledger.poster.submit(local.local_use(usage("r3")), urgent=False)]
    assert outcomes(patient) == ["posted"]


def test_a_stop_that_takes_too_long_fails_what_still_waits(engine: Engine) -> None:
    gate = Gate()
    poster = Poster(write_sessions(engine), failpoint=gate)
    poster.start()
    inside = poster.submit(grants.manual_credit("c1", "ann", 1, "test"))
    assert gate.reached.wait(ANSWER_S)
    waiting = poster.submit(grants.manual_credit("c2", "ann", 1, "test"))
    assert not poster.stop(timeout_s=0.05)
    gate.open()
    assert outcomes([inside, waiting]) == ["posted", "PosterStopped"]
    assert poster.stop(ANSWER_S)


def test_of_64_that_resolve_one_hold_exactly_one_does(engine: Engine) -> None:
    """Half of them at another gateway, which has a writer of its own on the same database."""
    with LedgerService(engine) as here, LedgerService(engine) as there:
        here.credit("ann", 100)
        held = here.hold("r1", "ann", 100)
        start = threading.Barrier(64)
        answers: list[Future[Any]] = []

        def resolve(number: int) -> None:
            ledger = (here, there)[number % 2]
            start.wait(ANSWER_S)
            bill = CloudBill("acme", charge_nano=number, cost_nano=1)
            answers.append(ledger.holds.capture(held, bill) if number % 4 < 2 else ledger.holds.release(held))

        threads = [threading.Thread(target=resolve, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ANSWER_S)
        results = outcomes(answers)
        assert results.count("posted") == 1
        assert set(results) <= {"posted", "replayed", "AlreadyResolved", "IdempotencyConflict"}
        assert here.balance("user:ann:paid").held_nano == 0
        assert here.findings() == []
