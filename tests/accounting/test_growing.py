"""A part of a lease that becomes larger while its request runs: no more than there is, and nothing left behind."""

import random
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from accounting.errors import InsufficientCredit, LedgerUnavailable
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.leases import Leases
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService, usage


@pytest.fixture
def leases(ledger: LedgerService) -> Iterator[Leases]:
    """Each `turn` of it is the test's."""
    leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS)
    yield leases
    leases.turn(is_closing=True)


def answered(leases: Leases, placed: "Hold | Future[Hold]") -> Hold:
    if isinstance(placed, Hold):
        return placed
    leases.turn()
    return placed.result(ANSWER_S)


def test_a_part_grows_to_the_last_credit_and_no_further(ledger: LedgerService, leases: Leases) -> None:
    ledger.credit("ann", 1000)
    held = answered(leases, leases.hold("r1", Payer("ann"), 100))
    for amount in (200, 400, 1000):
        held = answered(leases, leases.grow(held, amount))
        assert (held.amount_nano, ledger.balance("user:ann:paid").held_nano) == (amount, amount)
    with pytest.raises(InsufficientCredit) as refused:
        answered(leases, leases.grow(held, 1001))
    assert (refused.value.needed_nano, refused.value.available_nano) == (1, 0)
    leases.end(held, 700)
    captured = leases.capture(held, CloudBill("acme", 700, 700), usage("r1", lane="cloud"))
    leases.turn(is_closing=True)
    assert captured.result(ANSWER_S)
    left = ledger.balance("user:ann:paid")
    assert (left.available_nano, left.held_nano, ledger.findings()) == (300, 0, [])


def test_what_is_refused_says_how_much_there_is_besides(ledger: LedgerService, leases: Leases) -> None:
    ledger.credit("ann", 250)
    held = answered(leases, leases.hold("r1", Payer("ann"), 100))
    with pytest.raises(InsufficientCredit) as refused:
        answered(leases, leases.grow(held, 300))
    assert (refused.value.needed_nano, refused.value.available_nano) == (200, 150)
    assert answered(leases, leases.grow(held, 250)).amount_nano == 250


def test_a_part_that_was_to_grow_when_its_request_ended_leaves_nothing(
    ledger: LedgerService, leases: Leases
) -> None:
    ledger.credit("ann", 1000)
    held = answered(leases, leases.hold("r1", Payer("ann"), 100))
    late = leases.grow(held, 300)
    leases.end(held, 60)
    leases.capture(held, CloudBill("acme", 60, 60), usage("r1", lane="cloud"))
    leases.turn()
    assert isinstance(late, Future)
    with pytest.raises(LedgerUnavailable):
        late.result(ANSWER_S)
    leases.turn(is_closing=True)
    assert ledger.balance("user:ann:paid").available_nano == 940
    assert ledger.balance("user:ann:paid").held_nano == 0


def test_two_requests_that_grow_at_once_share_what_there_is(ledger: LedgerService, leases: Leases) -> None:
    ledger.credit("ann", 500)
    one = answered(leases, leases.hold("r1", Payer("ann"), 100))
    two = answered(leases, leases.hold("r2", Payer("ann"), 100))
    more = leases.grow(one, 400), leases.grow(two, 400)
    leases.turn()
    outcomes = [placed if isinstance(placed, Hold) else placed.exception(ANSWER_S) for placed in more]
    assert sum(not isinstance(outcome, InsufficientCredit) for outcome in outcomes) == 1
    assert ledger.balance("user:ann:paid").available_nano >= 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_whatever_grows_in_two_processes_nothing_is_overdrawn_or_left(ledger: LedgerService, seed: int) -> None:
    chance, credit, charged = random.Random(seed), 3000, 0
    ledger.credit("ann", credit)
    processes = [Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS) for _ in range(2)]
    running: list[tuple[Leases, Hold]] = []
    for number in range(120):
        leases = chance.choice(processes)
        what = chance.choice(("hold", "grow", "grow", "end"))
        try:
            if what == "hold":
                running.append(
                    (leases, answered(leases, leases.hold(f"r{number}", Payer("ann"), chance.randint(1, 300))))
                )
            elif running and what == "grow":
                at = chance.randrange(len(running))
                leases, held = running[at]
                running[at] = (
                    leases,
                    answered(leases, leases.grow(held, held.amount_nano + chance.randint(1, 300))),
                )
        except InsufficientCredit:
            continue
        if running and what == "end":
            leases, held = running.pop(chance.randrange(len(running)))
            charge = chance.randint(1, held.amount_nano)
            charged += charge
            leases.capture(held, CloudBill("acme", charge, charge), usage(held.request_id, lane="cloud"))
        found = ledger.balance("user:ann:paid")
        assert found.held_nano >= sum(held.amount_nano for _, held in running)
        assert found.available_nano >= 0
    for leases, held in running:
        leases.end(held, 0)
    for leases in processes:
        leases.turn(is_closing=True)
    left = ledger.balance("user:ann:paid")
    assert (left.available_nano, left.held_nano, ledger.findings()) == (credit - charged, 0, [])


def test_of_two_reservations_for_one_request_the_larger_stands_in_any_order(
    ledger: LedgerService, leases: Leases
) -> None:
    """A stream has asked for more and has not heard the answer when its provider's count is to be covered."""
    ledger.credit("ann", 300)
    held = answered(leases, leases.hold("r1", Payer("ann"), 100))
    more = leases.grow(held, 200)
    leases.turn()
    assert isinstance(more, Future)
    covered = leases.grow(held, 150)
    assert isinstance(covered, Hold)
    assert covered.amount_nano == more.result(ANSWER_S).amount_nano == 200
    other = answered(leases, leases.hold("r2", Payer("ann"), 100))
    captured = leases.capture(more.result(ANSWER_S), CloudBill("acme", 200, 200), usage("r1", lane="cloud"))
    leases.turn()
    assert captured.result(ANSWER_S)
    assert isinstance(leases.grow(other, 100), Hold)
