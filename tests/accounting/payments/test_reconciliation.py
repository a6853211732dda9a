"""The daily comparison: what only one side knows waits in suspense until the other side learns of it."""

import pytest

from accounting.payments import rules
from accounting.payments.terms import NANO_PER_CENT, Quote
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace
from tests.fakes.stripe import connect, paying


def test_money_that_only_stripe_knows_waits_in_suspense(marketplace: Marketplace) -> None:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.pay(topup.session_id or "")
    assert [pair.subject[:3] for pair in marketplace.payments.reconciliation.run().waiting] == ["pi_"]
    assert marketplace.balance("suspense") == 0, "a message may be on its way"
    report = marketplace.reconcile()
    assert [pair.ledger_nano for pair in report.unmatched] == [0]
    assert report.difference_nano == 0
    assert marketplace.balance("suspense") > 0
    assert marketplace.reconcile().unmatched == report.unmatched, "told every day, moved once"
    marketplace.settle()
    marketplace.check()


def test_money_that_only_the_ledger_knows_waits_in_suspense(marketplace: Marketplace) -> None:
    marketplace.ledger.post(rules.topup("pi_dreamt", "t0", "ann", Quote(5 * USD, 80 * NANO_PER_CENT)))
    report = marketplace.reconcile()
    assert [(pair.subject, pair.stripe_nano) for pair in report.unmatched] == [("pi_dreamt", 0)]
    assert (marketplace.balance("asset:stripe"), marketplace.balance("suspense")) == (0, -580 * NANO_PER_CENT)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_refund_that_a_bank_takes_days_for_is_no_mistake(marketplace: Marketplace, succeeds: bool) -> None:
    marketplace.buy("t1")
    made = marketplace.payments.refunds.open("r1", "t1", 5 * USD)
    report = marketplace.reconcile()
    assert [(pair.stripe_nano, pair.ledger_nano) for pair in report.waiting] == [(-5 * USD, 0)]
    assert (report.unmatched, report.difference_nano, marketplace.balance("suspense")) == ((), 0, 0)
    paying.end_refund(marketplace.stripe.state, made.refund_id or "", succeeds=succeeds)
    marketplace.settle()
    marketplace.check()


@pytest.mark.parametrize("succeeds", [True, False])
def test_the_marketplaces_own_payouts_go_by_way_of_transit(marketplace: Marketplace, succeeds: bool) -> None:
    marketplace.buy("t1")
    payout = connect.create_payout(marketplace.stripe.state, {"amount": "1000"}, None)
    marketplace.settle()
    assert marketplace.balance("asset:stripe_in_transit") == 10 * USD
    connect.end_payout(marketplace.stripe.state, payout["id"], succeeds=succeeds)
    marketplace.settle()
    assert marketplace.balance("asset:stripe_in_transit") == 0
    assert marketplace.balance("asset:bank") == (10 * USD if succeeds else 0)
    marketplace.check()


def test_stripes_own_fees_are_expenses(marketplace: Marketplace) -> None:
    marketplace.buy("t1")
    before_nano = marketplace.balance("expense:stripe_fee")
    marketplace.stripe.state.move("stripe_fee", "", -200)
    marketplace.check()
    assert marketplace.balance("expense:stripe_fee") == before_nano + 2 * USD


def test_fees_are_booked_by_the_next_run_where_one_died_in_its_midst(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    marketplace.buy("t1")
    before_nano = marketplace.balance("expense:stripe_fee")
    marketplace.stripe.state.move("stripe_fee", "", -200)
    with monkeypatch.context() as patch:
        patch.setattr("accounting.payments.ledger.Ledger.book", _die)
        with pytest.raises(SystemExit):
            marketplace.reconcile()
    marketplace.check()
    assert marketplace.balance("expense:stripe_fee") == before_nano + 2 * USD


def _die(*_: object) -> None:
    raise SystemExit


def test_cents_of_another_currency_are_told_and_no_dollars(marketplace: Marketplace) -> None:
    marketplace.buy("t1")
    marketplace.stripe.state.move("adjustment", "adj_1", 900)["currency"] = "eur"
    balances = marketplace.payments.reconciliation.run()
    assert [name[-5:] for name in balances.foreign] == ["(eur)"]
    assert (marketplace.reconcile().unmatched, marketplace.balance("suspense")) == ((), 0)


def test_what_nothing_happened_to_lately_is_not_compared(marketplace: Marketplace) -> None:
    marketplace.buy("t1")
    assert marketplace.reconcile().compared == 1
    marketplace.ledger.now_ns += 121 * 24 * HOUR_NS
    report = marketplace.payments.reconciliation.run()
    assert (report.compared, report.unmatched, report.difference_nano) == (0, (), 0)
