"""Top-ups: booked once and only when Stripe says that the right payment was made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.payments.errors import PaymentInvalid, PaymentNotFound, StripeUnavailable
from accounting.payments.terms import NANO_PER_CENT, PaymentTerms, quote
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace


@given(st.sampled_from(PaymentTerms().topup_amounts_nano), st.integers(0, 5_000), st.integers(0, 500))
def test_a_fee_is_whole_cents_and_covers_share_and_minimum(credit_nano: int, bps: int, min_cents: int) -> None:
    terms = PaymentTerms(fee_bps=bps, fee_min_nano=min_cents * NANO_PER_CENT)
    fee_nano = quote(terms, credit_nano).fee_nano
    assert fee_nano % NANO_PER_CENT == 0
    assert fee_nano >= max(credit_nano * bps / 10_000, terms.fee_min_nano)
    assert fee_nano < max(credit_nano * bps // 10_000, terms.fee_min_nano) + 2 * NANO_PER_CENT


@pytest.mark.parametrize("credit_nano", [0, -5 * USD, 5 * USD + 1, 7 * USD, 10**15, 2**63])
def test_amounts_that_are_not_on_offer_are_refused(marketplace: Marketplace, credit_nano: int) -> None:
    with pytest.raises(PaymentInvalid, match="in these amounts"):
        marketplace.payments.topups.open("t1", "ann", credit_nano)
    assert marketplace.made("checkout.session") == 0


def test_a_paid_top_up_is_booked_with_its_fees(marketplace: Marketplace) -> None:
    assert marketplace.buy("t1").status == "paid"
    assert marketplace.balance("user:ann:paid") == 25 * USD
    assert marketplace.balance("income:topup_fee") == 138 * NANO_PER_CENT
    assert marketplace.balance("expense:stripe_fee") == (2638 * 290 // 10_000 + 30) * NANO_PER_CENT
    marketplace.check()


def test_the_success_page_alone_books_nothing(marketplace: Marketplace) -> None:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    assert topup.session_id
    # A call of the success page, or a check that it causes, is no payment.
    marketplace.payments.topups.session_changed(topup.session_id)
    marketplace.settle()
    assert marketplace.payments.topups.find("t1").status == "open"
    marketplace.pay(topup.session_id, pays=False)
    marketplace.settle()
    assert marketplace.payments.topups.find("t1").status == "expired"
    assert marketplace.balance("user:ann:paid") == marketplace.balance("asset:stripe") == 0
    marketplace.check()


def test_a_payment_of_another_amount_is_not_booked_but_put_in_suspense(marketplace: Marketplace) -> None:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.stripe.state.objects[topup.session_id or ""]["amount_total"] = 100
    marketplace.pay(topup.session_id or "")
    marketplace.settle()
    assert marketplace.payments.worker.count("failed") == 2
    assert marketplace.balance("user:ann:paid") == 0
    assert [pair.ledger_nano for pair in marketplace.reconcile().unmatched] == [0]
    assert marketplace.balance("suspense") == marketplace.balance("asset:stripe") == (100 - 32) * NANO_PER_CENT


def test_the_same_top_up_asked_for_again_is_the_same_page(marketplace: Marketplace) -> None:
    marketplace.stripe.faults.order("timeout_after", "checkout/sessions", 3)
    with pytest.raises(StripeUnavailable):
        marketplace.payments.topups.open("t1", "ann", 25 * USD)
    first = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    assert marketplace.payments.topups.open("t1", "ann", 25 * USD).url == first.url
    assert marketplace.made("checkout.session") == 1


def test_lost_webhooks_are_made_up_for(marketplace: Marketplace) -> None:
    topup = marketplace.payments.topups.open("t1", "ann", 25 * USD)
    marketplace.pay(topup.session_id or "")
    marketplace.stripe.webhooks.waiting.clear()
    marketplace.payments.tick()
    assert marketplace.balance("user:ann:paid") == 25 * USD
    marketplace.check()


def test_automatic_top_ups_run_one_at_a_time_and_end_with_refusals(marketplace: Marketplace) -> None:
    topups, payers = marketplace.payments.topups, marketplace.payments.payers
    with pytest.raises(PaymentNotFound, match="saved"):
        payers.top_up_below("ann", 1 * USD, 10 * USD)
    marketplace.buy("t1", saves=True)
    payers.top_up_below("ann", 10 * USD, 10 * USD)
    assert topups.open_auto("ann", "a1") is None, "enough is there"
    payers.top_up_below("ann", 50 * USD, 50 * USD)
    marketplace.stripe.faults.order("timeout_after", "payment_intents", 3)
    with pytest.raises(StripeUnavailable):
        topups.open_auto("ann", "a2")
    assert topups.open_auto("ann", "a3") is None, "one is on its way"
    marketplace.settle()
    assert topups.find("a2").status == "paid"
    assert marketplace.balance("user:ann:paid") == 75 * USD

    payers.top_up_below("ann", 100 * USD, 100 * USD)
    marketplace.stripe.state.objects[payers.find("ann").method_id or ""]["declines"] = True
    outcomes = []
    for number in range(5):
        outcomes.append(topups.open_auto("ann", f"b{number}"))
        assert topups.open_auto("ann", f"c{number}") is None, "a declined card rests a while"
        marketplace.ledger.now_ns += 16 * HOUR_NS
    assert [topup.status if topup else None for topup in outcomes] == ["failed"] * 3 + [None] * 2
    assert marketplace.balance("user:ann:paid") == 75 * USD
    marketplace.check()
