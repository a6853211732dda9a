"""Refunds, disputes, payouts and what comes back of them."""

import pytest

from accounting.errors import InsufficientCredit
from accounting.payments.errors import PaymentInvalid, PaymentNotFound, StripeRefused, StripeUnavailable
from accounting.payments.terms import NANO_PER_CENT
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace
from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.faults import Fault


@pytest.mark.parametrize("end", ["succeeded", "failed", "returned"])
def test_refunds_put_aside_first_and_end_as_the_bank_says(marketplace: Marketplace, end: str) -> None:
    marketplace.buy("t1")
    refund = marketplace.payments.refunds.open("r1", "t1", 10 * USD)
    assert (refund.status, marketplace.ledger.balance("user:ann:paid").available_nano) == ("sent", 15 * USD)
    if end != "failed":
        paying.end_refund(marketplace.stripe.state, refund.refund_id or "", succeeds=True)
        marketplace.settle()
        assert marketplace.balance("user:ann:paid") == 15 * USD
    if end != "succeeded":
        paying.end_refund(marketplace.stripe.state, refund.refund_id or "", succeeds=False)
        marketplace.settle()
        assert marketplace.balance("user:ann:paid") == 25 * USD
    assert marketplace.payments.refunds.find("r1").status == end
    marketplace.check()


def test_refunds_never_exceed_their_top_up_nor_what_is_left(marketplace: Marketplace) -> None:
    marketplace.buy("t1")
    refunds = marketplace.payments.refunds
    refunds.open("r1", "t1", 20 * USD)
    assert refunds.open("r1", "t1", 20 * USD).status == "sent"
    for amount_nano in (0, 1, 6 * USD):
        with pytest.raises(PaymentInvalid):
            refunds.open("r2", "t1", amount_nano)
    with pytest.raises(PaymentNotFound):
        refunds.open("r3", "t9", USD)
    marketplace.ledger.hold("spent", "ann", 4 * USD)
    with pytest.raises(InsufficientCredit):
        refunds.open("r4", "t1", 5 * USD)
    assert marketplace.made("refund") == 1
    refund_id = refunds.find("r1").refund_id or ""
    paying.end_refund(marketplace.stripe.state, refund_id, succeeds=True)
    marketplace.settle()
    assert marketplace.balance("user:ann:paid") == 5 * USD
    marketplace.check()


def test_a_refund_made_on_stripes_own_pages_is_taken_from_the_user(marketplace: Marketplace) -> None:
    topup = marketplace.buy("t1")
    refund = paying.create_refund(marketplace.stripe.state, {"payment_intent": topup.intent_id, "amount": "2638"})
    paying.end_refund(marketplace.stripe.state, refund["id"], succeeds=True)
    marketplace.settle()
    assert marketplace.balance("user:ann:paid") == 0
    assert marketplace.balance("asset:user_recv:ann") == 138 * NANO_PER_CENT
    marketplace.check()


@pytest.mark.parametrize("won", [True, False])
def test_disputes_freeze_and_their_end_is_the_mirror_or_a_bad_debt(marketplace: Marketplace, won: bool) -> None:
    topup = marketplace.buy("t1")
    marketplace.ledger.hold("running", "ann", 20 * USD)
    dispute = paying.open_dispute(marketplace.stripe.state, topup.intent_id or "")
    marketplace.settle()
    assert marketplace.payments.payers.frozen_why("ann")
    assert marketplace.ledger.balance("user:ann:paid").available_nano == 0
    owed_nano = 2_638 * NANO_PER_CENT - 5 * USD
    assert marketplace.balance("asset:user_recv:ann") == owed_nano
    paying.close_dispute(marketplace.stripe.state, dispute["id"], won=won)
    marketplace.settle()
    assert bool(marketplace.payments.payers.frozen_why("ann")) is not won
    assert marketplace.balance("asset:user_recv:ann") == 0
    assert marketplace.balance("expense:bad_debt") == (0 if won else owed_nano)
    assert marketplace.balance("user:ann:paid") == (25 * USD if won else 20 * USD)
    assert marketplace.balance("expense:dispute_fee") == 15 * USD
    marketplace.check()


@pytest.mark.parametrize(
    "fault", ["timeout_before", "timeout_after", "error_before", "error_after", "rate_limited"]
)
def test_a_payout_with_an_unknown_end_is_one_transfer(marketplace: Marketplace, fault: Fault) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    marketplace.stripe.faults.order(fault, "transfers", 3)
    try:
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    except StripeUnavailable:
        assert marketplace.ledger.balance("seller:sam:payable").held_nano == 20 * USD
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    assert marketplace.made("transfer") == 1
    keys = {call.key for call in marketplace.stripe.calls if call.path == "transfers"}
    # What Stripe answers for ever with an error, without having done it, is the one reason for another key.
    assert keys == {"payout-p1"} | ({"payout-p1.2", "payout-p1.3"} & keys if fault == "error_before" else set())
    assert marketplace.balance("seller:sam:payable") == 30 * USD
    _arrive(marketplace)
    assert marketplace.payments.payouts.find("p1").status == "paid"
    marketplace.check()


def test_a_dispute_that_is_told_of_before_its_payment_takes_what_the_payment_gave(
    marketplace: Marketplace,
) -> None:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.pay(topup.session_id or "")
    marketplace.stripe.webhooks.waiting.clear()
    paying.open_dispute(marketplace.stripe.state, str(next(marketplace.stripe.state.all("payment_intent"))["id"]))
    marketplace.stripe.webhooks.deliver(marketplace.post)
    marketplace.payments.worker.run()
    assert (marketplace.balance("user:ann:paid"), marketplace.balance("asset:user_recv:ann")) == (
        0,
        138 * NANO_PER_CENT,
    )
    marketplace.check()


def _arrive(marketplace: Marketplace, *, succeeds: bool = True) -> None:
    payouts = [found for found in marketplace.stripe.state.objects.values() if found["object"] == "payout"]
    for payout in payouts:
        if payout["status"] == "pending":
            connect.end_payout(marketplace.stripe.state, payout["id"], succeeds=succeeds)
    marketplace.settle()


def test_a_payout_that_the_bank_sends_back_is_tried_again_with_another_key(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    account_id = marketplace.seller("sam", 50 * USD)
    marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    _arrive(marketplace, succeeds=False)
    assert marketplace.payments.payouts.find("p1").status == "paying"
    _arrive(marketplace)
    assert marketplace.payments.payouts.find("p1").status == "paid"
    assert [call.key for call in marketplace.stripe.calls if call.path == "payouts"] == [
        "payout-p1-bank-1",
        "payout-p1-bank-2",
    ]
    assert (marketplace.made("transfer"), marketplace.stripe.state.balance(account_id)) == (1, 0)
    marketplace.check()


def test_a_reversed_transfer_is_payable_again(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    transfer_id = marketplace.payments.payouts.open("p1", "sam", 20 * USD).transfer_id or ""
    connect.reverse_transfer(marketplace.stripe.state, transfer_id, {"amount": "500"})
    marketplace.settle()
    assert marketplace.balance("seller:sam:payable") == 35 * USD
    connect.reverse_transfer(marketplace.stripe.state, transfer_id, {})
    marketplace.settle()
    assert marketplace.balance("seller:sam:payable") == 50 * USD
    assert marketplace.payments.payouts.find("p1").status == "reversed"
    marketplace.check()


def test_payouts_keep_to_their_limits(marketplace: Marketplace) -> None:
    marketplace.funds(5_000)
    payouts = marketplace.payments.payouts
    with pytest.raises(PaymentNotFound):
        payouts.open("p0", "sam", 20 * USD)
    marketplace.seller("sam", 3_000 * USD)
    for amount_nano in (0, 9 * USD, 10 * USD + 1, 1_001 * USD):
        with pytest.raises(PaymentInvalid):
            payouts.open("p1", "sam", amount_nano)
    assert payouts.open("p2", "sam", 900 * USD).status == "paying"
    with pytest.raises(PaymentInvalid, match="day"):
        payouts.open("p3", "sam", 101 * USD)
    assert payouts.run_schedule("2026-11-22") == 0, "the day's limit holds for the schedule, too"
    marketplace.ledger.now_ns += 25 * HOUR_NS
    payouts.run_schedule("2026-11-23")
    payouts.run_schedule("2026-11-23")
    assert payouts.find("sam-2026-11-23").status == "paying"
    assert marketplace.balance("seller:sam:payable") == 1_100 * USD
    assert marketplace.made("transfer") == 2


def test_nothing_goes_to_an_account_that_was_swapped_or_frozen(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    marketplace.stripe.faults.order("timeout_before", "transfers", 9)
    with pytest.raises(StripeUnavailable):
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    marketplace.payments.sellers.attach("sam", "acct_swapped")
    marketplace.stripe.faults.clear()
    # It may have reached Stripe: only the account that it was asked for gets it.
    marketplace.settle()
    assert next(marketplace.stripe.state.all("transfer"))["destination"] != "acct_swapped"
    with pytest.raises(PaymentInvalid):
        marketplace.payments.payouts.open("p2", "sam", 20 * USD)
    marketplace.payments.sellers.freeze("sam", "dispute")
    with pytest.raises(PaymentInvalid, match="frozen"):
        marketplace.payments.payouts.open("p3", "sam", 20 * USD)
    assert marketplace.made("transfer") == 1


def test_what_stripe_refuses_for_good_is_payable_again(marketplace: Marketplace) -> None:
    marketplace.seller("sam", 50 * USD)
    with pytest.raises(StripeRefused):
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    assert marketplace.payments.payouts.find("p1").status == "refused"
    assert marketplace.ledger.balance("seller:sam:payable").available_nano == 50 * USD
    marketplace.check()
