"""What becomes of a hold whose request dies, and of text that was delivered after."""

import pytest

from accounting.errors import HoldExpired
from accounting.holds import LATE_CAPTURE_NS
from accounting.rules import CloudBill
from tests.accounting.books import ANSWER_S, MINUTE_NS, Books, outcome, usage


def test_a_dead_request_leaves_no_hold_and_its_text_is_owed(books: Books) -> None:
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
    assert outcome(books.holds.capture_late(held, bill, usage("r1"))) == "posted"
    assert outcome(books.holds.capture_late(held, bill, usage("r1"))) == "replayed"
    assert books.balance("asset:user_recv:ann").posted_nano == 700
    assert books.balance("provider:acme:accrued").posted_nano == 300
    assert books.balance("income:burst_margin").posted_nano == 400
    assert books.findings() == []


def test_after_a_day_nothing_is_booked_on_a_hold_any_more(books: Books) -> None:
    books.credit("ann", 1000)
    held = books.hold("r1", "ann", 700)
    books.now_ns = held.expires_ns + LATE_CAPTURE_NS + 1
    books.reaper.sweep(ANSWER_S)
    with pytest.raises(HoldExpired):
        books.holds.capture_late(held, CloudBill("acme", 1, 1))


def test_health_tells_of_a_hold_that_nobody_reaped(books: Books) -> None:
    books.credit("ann", 1000)
    books.hold("r1", "ann", 700)
    books.now_ns += 4 * MINUTE_NS
    assert [finding.rule for finding in books.findings()] == ["every hold is resolved, or not long expired"]
