"""What becomes of a hold whose request dies, and of text that was delivered after."""

import pytest

from accounting.errors import HoldExpired
from accounting.rules.held import CloudBill
from accounting.spending.holds import LATE_CAPTURE_NS
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, LedgerService, outcome, usage


def test_a_dead_request_leaves_no_hold_and_its_text_is_owed(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    held = ledger.hold("r1", "ann", 700)
    ledger.hold("r2", "ann", 100)
    bill = CloudBill("acme", charge_nano=900, cost_nano=300)

    ledger.now_ns = held.expires_ns
    assert ledger.reaper.sweep(ANSWER_S) == 0
    ledger.now_ns += 1
    assert ledger.reaper.sweep(ANSWER_S) == 2
    assert ledger.reaper.sweep(ANSWER_S) == 0
    assert ledger.balance("user:ann:paid").available_nano == 1000

    assert outcome(ledger.holds.capture(held, bill, usage("r1"))) == "HoldExpired"
    assert outcome(ledger.holds.capture_late(held, bill, usage("r1"), covered_nano=1001)) == "posted"
    assert outcome(ledger.holds.capture_late(held, bill, usage("r1"), covered_nano=1001)) == "replayed"
    assert ledger.balance("user:ann:paid").available_nano == 300
    assert ledger.balance("asset:user_recv:ann").posted_nano == 0
    assert ledger.balance("provider:acme:accrued").posted_nano == 300
    assert ledger.balance("income:burst_margin").posted_nano == 400
    assert ledger.findings() == []


def test_late_text_takes_the_credits_there_are_and_the_rest_is_owed(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    held = ledger.hold("r1", "ann", 700)
    ledger.now_ns = held.expires_ns + 1
    ledger.reaper.sweep(ANSWER_S)
    ledger.hold("r2", "ann", 800)
    bill = CloudBill("acme", charge_nano=600, cost_nano=600)
    assert outcome(ledger.holds.capture_late(held, bill, usage("r1"), covered_nano=201)) == "InsufficientCredit"
    assert outcome(ledger.holds.capture_late(held, bill, usage("r1"), covered_nano=200)) == "posted"
    assert ledger.balance("user:ann:paid").available_nano == 0
    assert ledger.balance("asset:user_recv:ann").posted_nano == 400
    assert ledger.findings() == []


def test_what_was_released_is_not_charged_late(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    released, running = ledger.hold("r1", "ann", 100), ledger.hold("r2", "ann", 100)
    ledger.holds.release(released).result(ANSWER_S)
    bill = CloudBill("acme", charge_nano=60, cost_nano=40)
    assert outcome(ledger.holds.capture_late(released, bill)) == "AlreadyResolved"
    assert outcome(ledger.holds.capture_late(running, bill)) == "HoldNotFound"
    assert ledger.balance("user:ann:paid").available_nano == 900


def test_local_work_after_a_hold_is_booked_with_its_release(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    held = ledger.hold("r1", "ann", 700)
    ledger.holds.release(held, usage("r1", compute_nano=9)).result(ANSWER_S)
    assert ledger.balance("user:ann:paid").available_nano == 1000
    assert ledger.balance("cu:supply:cluster").posted_nano == 9
    assert ledger.findings() == []


def test_a_clock_that_ran_ahead_hides_no_hold_for_ever(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    right_ns = ledger.now_ns
    ledger.now_ns += 600 * MINUTE_NS
    ledger.reaper.sweep(ANSWER_S)
    ledger.now_ns = right_ns
    held = ledger.hold("r1", "ann", 700)
    ledger.now_ns = held.expires_ns + 1
    assert ledger.reaper.sweep(ANSWER_S) == 1


def test_after_a_day_nothing_is_booked_on_a_hold_any_more(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    held = ledger.hold("r1", "ann", 700)
    ledger.now_ns = held.expires_ns + LATE_CAPTURE_NS + 1
    ledger.reaper.sweep(ANSWER_S)
    with pytest.raises(HoldExpired):
        ledger.holds.capture_late(held, CloudBill("acme", 1, 1))


def test_health_reports_a_hold_that_was_not_reaped(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    ledger.hold("r1", "ann", 700)
    ledger.now_ns += 4 * MINUTE_NS
    assert [finding.rule for finding in ledger.findings()] == ["holds_resolved"]
