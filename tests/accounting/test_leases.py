"""Leases: many requests on one hold, in two processes at once; no credit is promised twice or kept unused."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from accounting.errors import DatabaseFailing, HoldExpired, InsufficientCredit
from accounting.ledger.journal import Failpoint
from accounting.ledger.postings import Posted, Posting
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending import lease_renewer
from accounting.spending.lease import LEASE_NS
from accounting.spending.leases import Leases
from gateway.billing.batch_settlement import Settler
from gateway.billing.spool import Settlement
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService, usage
from tests.accounting.machines import Interrupted


@pytest.fixture
def leases(ledger: LedgerService) -> Iterator[Leases]:
    leases = Leases(ledger.poster, ledger.read)
    leases.start()
    yield leases
    leases.stop()


def result(placed: "Hold | Future[Hold]") -> Hold:
    return placed if isinstance(placed, Hold) else placed.result(ANSWER_S)


def test_of_200_at_once_exactly_as_many_are_served_as_the_credit_is_worth(
    ledger: LedgerService, leases: Leases
) -> None:
    """Half of them in another process."""
    ledger.credit("ann", 100 * 50)
    others = Leases(ledger.poster, ledger.read)
    others.start()
    start = threading.Barrier(20)
    served: list[Hold] = []

    def ask(number: int) -> None:
        mine = (leases, others)[number % 2]
        start.wait(ANSWER_S)
        for turn in range(10):
            try:
                held = result(mine.hold(f"r{number}-{turn}", Payer("ann"), 50))
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
    assert ledger.balance("user:ann:paid").available_nano == 5000 - 50 * len(served)
    assert ledger.findings() == []


def test_an_event_whose_answer_was_lost_is_neither_repeated_nor_forgotten(engine: Engine) -> None:
    failures = itertools.repeat("after_commit", 4)

    def fail(reached: Failpoint) -> None:
        if is_away.is_set() and reached == "after_commit" and next(failures, None):
            raise OperationalError("commit", None, Exception("gone"))

    is_away = threading.Event()
    with LedgerService(engine, failpoint=fail, attempts_max=1) as ledger:
        leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS)
        ledger.credit("ann", 1000)
        pending = leases.hold("r1", Payer("ann"), 100)
        leases.turn()
        held = result(pending)
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
        assert ledger.balance("user:ann:paid").available_nano == 940
        assert ledger.findings() == []


def test_requests_are_refused_at_once_while_the_ledger_is_away(engine: Engine) -> None:
    def fail(reached: Failpoint) -> None:
        if is_away.is_set():
            raise OperationalError("commit", None, Exception("gone"))

    is_away = threading.Event()
    with LedgerService(engine, failpoint=fail, attempts_max=1) as ledger:
        leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS)
        ledger.credit("ann", 1000)
        is_away.set()
        for number in range(3):
            pending = leases.hold(f"r{number}", Payer("ann"), 100)
            assert isinstance(pending, Future)
            assert not leases.turn()
            assert isinstance(pending.exception(0), DatabaseFailing)
        assert leases._draws == 0
        is_away.clear()
        assert leases.turn()
        pending = leases.hold("r9", Payer("ann"), 1000)
        assert leases.turn()
        assert result(pending).amount_nano == 1000


def test_credits_that_are_being_returned_are_not_promised(ledger: LedgerService) -> None:
    """A request that comes while the ledger books the event waits for the next one, which has a part for it."""
    writer = Interrupted(ledger.poster)
    leases = Leases(writer, ledger.read, clock_ns=lambda: ledger.now_ns)
    ledger.credit("ann", 1000)
    pending = [leases.hold(f"r{number}", Payer("ann"), 20) for number in range(2)]
    leases.turn()
    for held in map(result, pending):
        leases.end(held, 0)
        leases.capture(held, None, usage(held.request_id, lane="cloud"))
    leases.turn()
    ledger.now_ns += 6 * 10**9
    late: list[Hold | Future[Hold]] = []
    writer.meanwhile.append(lambda: late.append(leases.hold("late", Payer("ann"), 20)))
    leases.turn()
    (placed,) = late
    if isinstance(placed, Future):
        leases.turn()
    held = result(placed)
    leases.end(held, 15)
    captured = leases.capture(held, CloudBill("acme", 15, 10), usage("late", lane="cloud"))
    leases.turn()
    assert captured.result(ANSWER_S)
    assert isinstance(leases.hold("next", Payer("ann"), 900), Future)
    assert leases.turn()
    leases.turn(is_closing=True)
    assert ledger.balance("user:ann:paid").posted_nano == 985
    assert ledger.findings() == []


def test_a_charge_without_a_reservation_delays_no_request(ledger: LedgerService) -> None:
    leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: ledger.now_ns)
    ledger.credit("ann", 1000)
    pending, running = leases.hold("r1", Payer("ann"), 100), leases.hold("r0", Payer("ann"), 10)
    leases.turn()
    assert result(running).amount_nano == 10
    held = result(pending)
    leases.end(held, 0)
    ledger.now_ns += 6 * 10**9
    leases.turn()
    captured = leases.capture(held, CloudBill("acme", 100, 90), usage("r1", lane="cloud"))
    following = leases.hold("r2", Payer("ann"), 100)
    assert leases.turn()
    assert isinstance(captured.exception(ANSWER_S), HoldExpired)
    assert result(following).amount_nano == 100


def test_a_charge_that_nothing_is_put_aside_for_is_not_taken_from_those_who_run(ledger: LedgerService) -> None:
    leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: ledger.now_ns)
    settler = Settler(ledger.poster, leases, lambda query: query(ledger.read()))
    ledger.credit("ann", 1000)
    pending, running = leases.hold("r1", Payer("ann"), 100), leases.hold("r0", Payer("ann"), 10)
    leases.turn()
    held = result(pending)
    leases.end(held, 0)
    ledger.now_ns += 6 * 10**9
    leases.turn()
    following = leases.hold("r2", Payer("ann"), 100)
    unpaid = Settlement(usage("r1", lane="cloud"), held, CloudBill("acme", 100, 90))
    with ThreadPoolExecutor(1) as clerk:
        settled = clerk.submit(settler.settle, [unpaid])
        while not any(lease.captures for lease in leases._leases.values()):
            time.sleep(0.001)
        leases.turn()
    assert isinstance(settled.result()[0], int)
    assert result(following).amount_nano == 100
    captured = leases.capture(result(running), CloudBill("acme", 10, 10), usage("r0", lane="cloud"))
    assert leases.turn()
    assert captured.result(ANSWER_S)
    leases.turn(is_closing=True)
    left = ledger.balance("user:ann:paid")
    assert (left.posted_nano, left.held_nano, ledger.findings()) == (1000 - 100 - 10, 100, [])


class Deaf(Interrupted):
    """A writer whose answer to the event `deaf_at` gets lost, counted from the one that comes next."""

    deaf_at: int | None = None

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        booked = super().submit(posting, urgent=urgent)
        if self.deaf_at is None:
            return booked
        self.deaf_at -= 1
        if self.deaf_at:
            return booked
        booked.result(ANSWER_S)
        lost: Future[Posted] = Future()
        lost.set_exception(DatabaseFailing("gone"))
        return lost


def test_a_lease_that_gives_back_for_another_and_is_not_answered_keeps_what_its_requests_need(
    ledger: LedgerService,
) -> None:
    """Both lack credits: what one is asked to give back for the other is booked, and it does not hear of it."""
    writer = Deaf(ledger.poster)
    leases = Leases(writer, ledger.read, clock_ns=lambda: ledger.now_ns)
    ledger.credit("ann", 1000)
    payers = Payer("ann"), Payer("ann", takes_grants=False)
    pending = [leases.hold(f"r{n}-{at}", payer, 10) for at, payer in enumerate(payers) for n in range(2)]
    assert leases.turn()
    running = result(pending[-1])
    short = [leases.hold(f"s{at}", payer, 900) for at, payer in enumerate(payers)]
    # Both are denied; the third is the second lease's, for the first.
    writer.deaf_at = 3
    leases.turn()
    outcomes = [placed.exception(ANSWER_S) for placed in short if isinstance(placed, Future)]
    assert [outcome is None for outcome in outcomes] == [True, False]
    captured = leases.capture(running, CloudBill("acme", 10, 10), usage(running.request_id, lane="cloud"))
    # What was not answered, then what ended.
    assert leases.turn()
    assert leases.turn()
    assert captured.result(ANSWER_S)
    leases.turn(is_closing=True)
    assert ledger.balance("user:ann:paid").held_nano == 10 + 10 + 10 + 900
    assert ledger.findings() == []


class Moody(Interrupted):
    """A writer that denies so many events, whatever they are."""

    denials = 0

    def submit(self, posting: Posting, *, urgent: bool = True) -> "Future[Posted]":
        if self.denials:
            self.denials -= 1
            raise InsufficientCredit("user:ann:paid", 100, 0)
        return super().submit(posting, urgent=urgent)


def test_what_is_booked_at_the_last_try_is_the_lease_s(ledger: LedgerService) -> None:
    writer = Moody(ledger.poster)
    leases = Leases(writer, ledger.read, clock_ns=lambda: ledger.now_ns)
    ledger.credit("ann", 1000)
    writer.denials = lease_renewer._TRIES_MAX
    pending = leases.hold("r1", Payer("ann"), 100)
    assert leases.turn()
    leases.end(result(pending), 0)
    leases.turn(is_closing=True)
    assert (ledger.balance("user:ann:paid").held_nano, ledger.findings()) == (0, [])


def test_waiting_requests_are_refused_if_the_ledger_denies_too_often(ledger: LedgerService) -> None:
    writer = Moody(ledger.poster)
    leases = Leases(writer, ledger.read, clock_ns=lambda: ledger.now_ns)
    ledger.credit("ann", 1000)
    writer.denials = lease_renewer._TRIES_MAX + 1
    pending = leases.hold("r1", Payer("ann"), 100)
    assert isinstance(pending, Future)
    assert not leases.turn()
    assert isinstance(pending.exception(ANSWER_S), DatabaseFailing)
    assert leases.turn()
    assert ledger.balance("user:ann:paid").held_nano == 0


def test_a_lease_that_was_reaped_is_nothing_to_its_requests(ledger: LedgerService) -> None:
    leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS)
    ledger.credit("ann", 1000)
    pending = leases.hold("r1", Payer("ann"), 100)
    leases.turn()
    held = result(pending)
    ledger.now_ns += LEASE_NS + 1
    assert ledger.reaper.sweep(ANSWER_S) == 1
    captured = leases.capture(held, CloudBill("acme", 60, 40), usage("r1"))
    leases.turn()
    assert isinstance(captured.exception(ANSWER_S), HoldExpired)
    late = leases.capture(held, CloudBill("acme", 60, 40), usage("r1"))
    assert isinstance(late.exception(ANSWER_S), HoldExpired)
    pending = leases.hold("r2", Payer("ann"), 1000)
    leases.turn()
    assert result(pending).lease != held.lease
