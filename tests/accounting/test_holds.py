"""What becomes of a hold whose request dies, and of text that was delivered after."""

import pytest

from accounting.errors import HoldExpired
from accounting.rules.held import CloudBill
from accounting.spending.holds import LATE_CAPTURE_NS
from tests.accounting.books import ANSWER_S, MINUTE_NS, LedgerService, outcome, usage


def test_a_dead_request_leaves_no_hold_and_its_text_is_owed(books: LedgerService) -> None:
    books.credit("ann", 1000)
    held = books.hold("r1", "ann", 700)
    books.hold("r2", "ann", 100)
    bill = CloudBill("acme", charge_nano=900, cost_nano=300)

    books.now_ns = held.expires_ns
    assert books.reaper.sweep(ANSWER_S) == 0
    books.now_ns += 1
    assert books.reaper.sweep(ANSWER_S) == 2
    assert books.reaper.sweep(ANSWER_S) == 0
    assert books.balance("user:ann:paid").available_nano == 1000

    assert outcome(books.holds.capture(held, bill, usage("r1"))) == "HoldExpired"
    assert outcome(books.holds.capture_late(held, bill, usage("r1"), covered_nano=1001)) == "posted"
    assert outcome(books.holds.capture_late(held, bill, usage("r1"), covered_nano=1001)) == "replayed"
    assert books.balance("user:ann:paid").available_nano == 300
    assert books.balance("asset:user_recv:ann").posted_nano == 0
    assert books.balance("provider:acme:accrued").posted_nano == 300
    assert books.balance("income:burst_margin").posted_nano == 400
    assert books.findings() == []


def test_late_text_takes_the_credits_there_are_and_the_rest_is_owed(books: LedgerService) -> None:
    books.credit("ann", 1000)
    held = books.hold("r1", "ann", 700)
    books.now_ns = held.expires_ns + 1
    books.reaper.sweep(ANSWER_S)
    books.hold("r2", "ann", 800)
    bill = CloudBill("acme", charge_nano=600, cost_nano=600)
    assert outcome(books.holds.capture_late(held, bill, usage("r1"), covered_nano=201)) == "InsufficientCredit"
    assert outcome(books.holds.capture_late(held, bill, usage("r1"), covered_nano=200)) == "posted"
    assert books.balance("user:ann:paid").available_nano == 0
    assert books.balance("asset:user_recv:ann").posted_nano == 400
    assert books.findings() == []


def test_what_was_released_is_not_charged_late(books: LedgerService) -> None:
    books.credit("ann", 1000)
    released, running = books.hold("r1", "ann", 100), books.hold("r2", "ann", 100)
    books.holds.release(released).result(ANSWER_S)
    bill = CloudBill("acme", charge_nano=60, cost_nano=40)
    assert outcome(books.holds.capture_late(released, bill)) == "AlreadyResolved"
    assert outcome(books.holds.capture_late(running, bill)) == "HoldNotFound"
    assert books.balance("user:ann:paid").available_nano == 900


def test_local_work_after_a_hold_is_booked_with_its_release(books: LedgerService) -> None:
    books.credit("ann", 1000)
    held = books.hold("r1", "ann", 700)
    books.holds.release(held, usage("r1", compute_nano=9)).result(ANSWER_S)
    assert books.balance("user:ann:paid").available_nano == 1000
    assert books.balance("cu:supply:cluster").posted_nano == 9
    assert books.findings() == []


def test_a_clock_that_ran_ahead_hides_no_hold_for_ever(books: LedgerService) -> None:
    books.credit("ann", 1000)
    right_ns = books.now_ns
    books.now_ns += 600 * MINUTE_NS
    books.reaper.sweep(ANSWER_S)
    books.now_ns = right_ns
    held = books.hold("r1", "ann", 700)
    books.now_ns = held.expires_ns + 1
    assert books.reaper.sweep(ANSWER_S) == 1


def test_after_a_day_nothing_is_booked_on_a_hold_any_more(books: LedgerService) -> None:
    books.credit("ann", 1000)
    held = books.hold("r1", "ann", 700)
    books.now_ns = held.expires_ns + LATE_CAPTURE_NS + 1
    books.reaper.sweep(ANSWER_S)
    with pytest.raises(HoldExpired):
        books.holds.capture_late(held, CloudBill("acme", 1, 1))


def test_health_tells_of_a_hold_that_nobody_reaped(books: LedgerService) -> None:
    books.credit("ann", 1000)
    books.hold("r1", "ann", 700)
    books.now_ns += 4 * MINUTE_NS
    assert [finding.rule for finding in books.findings()] == ["holds_resolved"]
