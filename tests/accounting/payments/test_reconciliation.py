"""The daily comparison: what only one side knows waits in suspense until the other side learns of it."""

import pytest

from accounting.payments import rules
from accounting.payments.terms import NANO_PER_CENT, Quote
from tests.accounting.payments.house import HOUR_NS, USD, Marketplace
from tests.fakes.stripe import connect, paying


def test_money_that_only_stripe_knows_waits_in_suspense(house: Marketplace) -> None:
    topup = house.payments.topups.open("t1", "ann", 25 * USD)
    house.pay(topup.session_id or "")
    assert [pair.subject[:3] for pair in house.payments.reconciliation.run().waiting] == ["pi_"]
    assert house.balance("suspense") == 0, "a message may be on its way"
    report = house.reconcile()
    assert [pair.ledger_nano for pair in report.unmatched] == [0]
    assert report.difference_nano == 0
    assert house.balance("suspense") > 0
    assert house.reconcile().unmatched == report.unmatched, "told every day, moved once"
    house.settle()
    house.check()


def test_money_that_only_the_books_know_waits_in_suspense(house: Marketplace) -> None:
    house.ledger.post(rules.topup("pi_dreamt", "t0", "ann", Quote(5 * USD, 80 * NANO_PER_CENT)))
    report = house.reconcile()
    assert [(pair.subject, pair.stripe_nano) for pair in report.unmatched] == [("pi_dreamt", 0)]
    assert (house.balance("asset:stripe"), house.balance("suspense")) == (0, -580 * NANO_PER_CENT)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_refund_that_a_bank_takes_days_for_is_no_mistake(house: Marketplace, succeeds: bool) -> None:
    house.buy("t1")
    made = house.payments.refunds.open("r1", "t1", 5 * USD)
    report = house.reconcile()
    assert [(pair.stripe_nano, pair.ledger_nano) for pair in report.waiting] == [(-5 * USD, 0)]
    assert (report.unmatched, report.difference_nano, house.balance("suspense")) == ((), 0, 0)
    paying.end_refund(house.stripe.state, made.refund_id or "", succeeds=succeeds)
    house.settle()
    house.check()


@pytest.mark.parametrize("succeeds", [True, False])
def test_the_houses_own_payouts_go_by_way_of_transit(house: Marketplace, succeeds: bool) -> None:
    house.buy("t1")
    payout = connect.create_payout(house.stripe.state, {"amount": "1000"}, None)
    house.settle()
    assert house.balance("asset:stripe_in_transit") == 10 * USD
    connect.end_payout(house.stripe.state, payout["id"], succeeds=succeeds)
    house.settle()
    assert house.balance("asset:stripe_in_transit") == 0
    assert house.balance("asset:bank") == (10 * USD if succeeds else 0)
    house.check()


def test_stripes_own_fees_are_expenses(house: Marketplace) -> None:
    house.buy("t1")
    before_nano = house.balance("expense:stripe_fee")
    house.stripe.state.move("stripe_fee", "", -200)
    house.check()
    assert house.balance("expense:stripe_fee") == before_nano + 2 * USD


def test_fees_are_booked_by_the_next_run_where_one_died_in_its_midst(
    house: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.buy("t1")
    before_nano = house.balance("expense:stripe_fee")
    house.stripe.state.move("stripe_fee", "", -200)
    with monkeypatch.context() as patch:
        patch.setattr("accounting.payments.ledger.Ledger.book", _die)
        with pytest.raises(SystemExit):
            house.reconcile()
    house.check()
    assert house.balance("expense:stripe_fee") == before_nano + 2 * USD


def _die(*_: object) -> None:
    raise SystemExit


def test_cents_of_another_currency_are_told_and_no_dollars(house: Marketplace) -> None:
    house.buy("t1")
    house.stripe.state.move("adjustment", "adj_1", 900)["currency"] = "eur"
    balances = house.payments.reconciliation.run()
    assert [name[-5:] for name in balances.foreign] == ["(eur)"]
    assert (house.reconcile().unmatched, house.balance("suspense")) == ((), 0)


def test_what_nothing_happened_to_lately_is_not_compared(house: Marketplace) -> None:
    house.buy("t1")
    assert house.reconcile().compared == 1
    house.ledger.now_ns += 121 * 24 * HOUR_NS
    report = house.payments.reconciliation.run()
    assert (report.compared, report.unmatched, report.difference_nano) == (0, (), 0)
