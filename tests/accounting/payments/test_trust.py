"""Users who get no money: frozen ones, debtors, declined cards, and all while the ledger is broken."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from sqlalchemy import Engine

from accounting.errors import InsufficientCredit, LedgerBroken
from accounting.payments.auto import month_start_ns
from accounting.payments.errors import PaymentInvalid
from accounting.payments.terms import quote
from accounting.rules.corrections import correction
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace, open_marketplace
from tests.fakes.stripe import connect, paying

_DAY_NS = 24 * HOUR_NS


def _disputed(marketplace: Marketplace, topup_id: str, *, inquiry: bool = False) -> str:
    topup = marketplace.buy(topup_id)
    dispute_id: str = paying.open_dispute(marketplace.stripe.state, topup.intent_id or "", inquiry=inquiry)["id"]
    marketplace.settle()
    return dispute_id


def test_each_reason_to_be_frozen_ends_for_itself(marketplace: Marketplace) -> None:
    payers = marketplace.payments.payers
    lost = _disputed(marketplace, "t1")
    payers.freeze("ann", None)
    assert payers.frozen_why("ann") == f"dispute {lost}", "an open dispute cannot be lifted"
    paying.close_dispute(marketplace.stripe.state, lost, won=False)
    marketplace.settle()
    payers.freeze("ann", None)
    assert payers.frozen_why("ann") is None, "a lost one an operator may let be"
    marketplace.settle()
    won = _disputed(marketplace, "t2")
    payers.freeze("ann", "a stolen key")
    paying.close_dispute(marketplace.stripe.state, won, won=True)
    marketplace.settle()
    assert payers.frozen_why("ann") == "a stolen key"
    marketplace.check()


def test_a_lost_dispute_outlasts_one_that_is_won(marketplace: Marketplace) -> None:
    topups = [marketplace.buy(f"t{number}") for number in range(2)]
    disputes = [paying.open_dispute(marketplace.stripe.state, topup.intent_id or "")["id"] for topup in topups]
    for dispute_id, won in zip(disputes, (False, True), strict=True):
        paying.close_dispute(marketplace.stripe.state, dispute_id, won=won)
        marketplace.settle()
    assert marketplace.payments.payers.frozen_why("ann") == f"dispute {disputes[0]}"
    marketplace.check()


@pytest.mark.parametrize("escalates", [False, True])
def test_an_inquiry_freezes_until_it_is_closed(marketplace: Marketplace, escalates: bool) -> None:
    inquiry = _disputed(marketplace, "t1", inquiry=True)
    assert (marketplace.payments.payers.frozen_why("ann"), marketplace.balance("user:ann:paid")) == (
        f"dispute {inquiry}",
        25 * USD,
    )
    paying.close_inquiry(marketplace.stripe.state, inquiry)
    marketplace.settle()
    assert marketplace.payments.payers.frozen_why("ann") is None
    if escalates:
        paying.escalate(marketplace.stripe.state, inquiry)
        marketplace.settle()
        assert (marketplace.payments.payers.frozen_why("ann"), marketplace.balance("user:ann:paid")) == (
            f"dispute {inquiry}",
            0,
        )
    marketplace.check()


def test_a_dispute_that_was_noted_freezes_whatever_dies_next(marketplace: Marketplace) -> None:
    topup = marketplace.buy("t1")
    dispute = paying.open_dispute(marketplace.stripe.state, topup.intent_id or "")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    ledger = type(marketplace.payments.topups.context.ledger)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ledger, "take_back", die)
        marketplace.payments.disputes.changed(dispute["id"])
    assert marketplace.payments.payers.frozen_why("ann") == f"dispute {dispute['id']}"
    marketplace.settle()
    marketplace.check()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_refund_ends_automatic_top_ups(marketplace: Marketplace, elsewhere: bool) -> None:
    topup = marketplace.buy("t1", saves=True)
    marketplace.payments.payers.top_up_below("ann", 20 * USD, 25 * USD)
    if elsewhere:
        refund = paying.create_refund(
            marketplace.stripe.state, {"payment_intent": topup.intent_id, "amount": "2000"}
        )
        refund_id = refund["id"]
    else:
        refund_id = marketplace.payments.refunds.open("r1", "t1", 20 * USD).refund_id or ""
    paying.end_refund(marketplace.stripe.state, refund_id, succeeds=True)
    marketplace.settle()
    marketplace.settle()
    assert (marketplace.balance("user:ann:paid"), marketplace.made("payment_intent")) == (5 * USD, 1)
    marketplace.check()


def test_a_refund_on_stripes_pages_that_comes_back_is_mirrored(marketplace: Marketplace) -> None:
    topup = marketplace.buy("t1")
    marketplace.ledger.hold("running", "ann", 20 * USD)
    refund = paying.create_refund(marketplace.stripe.state, {"payment_intent": topup.intent_id, "amount": "2500"})
    for succeeds, owed_nano, paid_nano in ((True, 20 * USD, 20 * USD), (False, 0, 25 * USD)):
        paying.end_refund(marketplace.stripe.state, refund["id"], succeeds=succeeds)
        marketplace.settle()
        assert marketplace.balance("asset:user_recv:ann") == owed_nano
        assert marketplace.balance("user:ann:paid") == paid_nano
    marketplace.payments.refunds.changed(refund["id"])
    assert marketplace.balance("user:ann:paid") == 25 * USD
    marketplace.check()


def test_sellers_pay_what_they_owe_before_they_are_paid(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    marketplace.ledger.post(correction("debt", "asset:seller_recv:sam", "asset:bank", 35 * USD))
    with pytest.raises(InsufficientCredit):
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    assert (marketplace.balance("asset:seller_recv:sam"), marketplace.balance("seller:sam:payable")) == (
        0,
        15 * USD,
    )
    marketplace.ledger.post(correction("debt2", "asset:seller_recv:sam", "asset:bank", 3 * USD))
    assert marketplace.payments.payouts.run_schedule("2026-11-23") == 1
    assert (marketplace.balance("asset:seller_recv:sam"), marketplace.balance("seller:sam:payable")) == (0, 0)
    assert [made["amount"] for made in marketplace.stripe.state.all("transfer")] == [1_200]
    marketplace.ledger.post(correction("debt3", "asset:seller_recv:sam", "asset:bank", 3 * USD))
    with pytest.raises(InsufficientCredit):
        marketplace.payments.payouts.open("p2", "sam", 10 * USD)
    assert marketplace.made("transfer") == 1


def test_who_is_frozen_is_paid_nothing_on_either_side(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    payouts, payers, sellers = (
        marketplace.payments.payouts,
        marketplace.payments.payers,
        marketplace.payments.sellers,
    )
    payers.freeze("sam", "a stolen card")
    with pytest.raises(PaymentInvalid, match="as a payer"):
        payouts.open("p1", "sam", 20 * USD)
    payers.freeze("sam", None)
    payout_id = payouts.open("p1", "sam", 20 * USD).payout_id or ""
    sellers.freeze("sam", "looked into")
    connect.end_payout(marketplace.stripe.state, payout_id, succeeds=False)
    marketplace.settle()
    stopped = payouts.find("p1")
    assert (stopped.status, stopped.reason, marketplace.made("payout")) == (
        "transferred",
        "the seller is frozen: looked into",
        1,
    )
    sellers.freeze("sam", None)
    assert payouts.drive("p1").status == "paying"
    sellers.freeze("sue", "sold to a stolen card")
    marketplace.seller("sue", 50 * USD)
    with pytest.raises(PaymentInvalid, match="the seller is frozen"):
        payouts.open("p2", "sue", 20 * USD)
    sellers.freeze("sue", None)
    assert payouts.open("p2", "sue", 20 * USD).status == "paying"
    marketplace.check()


def test_a_broken_ledger_pays_no_seller_and_charges_no_buyer_automatically(marketplace: Marketplace) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)
    marketplace.buy("t1", saves=True)
    marketplace.payments.payers.top_up_below("ann", 50 * USD, 50 * USD)
    marketplace.broken = LedgerBroken("equation", "both sides are equal")
    for ask in (
        lambda: marketplace.payments.payouts.open("p1", "sam", 20 * USD),
        lambda: marketplace.payments.payouts.run_schedule("2026-11-23"),
        lambda: marketplace.payments.refunds.open("r1", "t1", 5 * USD),
        lambda: marketplace.payments.topups.open_auto("ann", "a1"),
    ):
        with pytest.raises(LedgerBroken):
            ask()
    marketplace.settle()
    assert [marketplace.made(kind) for kind in ("transfer", "refund", "payment_intent")] == [0, 0, 1]
    marketplace.broken = None
    assert marketplace.payments.payouts.open("p1", "sam", 20 * USD).status == "paying"
    marketplace.settle()
    assert marketplace.balance("user:ann:paid") == 75 * USD
    marketplace.check()


def test_no_more_is_bought_unasked_than_a_day_allows(marketplace: Marketplace) -> None:
    marketplace.buy("t1", saves=True)
    marketplace.payments.payers.top_up_below("ann", 20 * USD, 25 * USD, day_max=2)
    bought = []
    for number in range(4):
        bought.append(marketplace.payments.topups.open_auto("ann", f"a{number}") is not None)
        if paid_nano := marketplace.ledger.balance("user:ann:paid").available_nano:
            marketplace.ledger.post(correction(f"spent{number}", "user:ann:paid", "asset:bank", paid_nano))
    assert bought == [False, True, True, False]
    marketplace.ledger.now_ns += _DAY_NS + HOUR_NS
    assert marketplace.payments.topups.open_auto("ann", "a5") is not None


def _spend_all(marketplace: Marketplace, name: str) -> None:
    if paid_nano := marketplace.ledger.balance("user:ann:paid").available_nano:
        marketplace.ledger.post(correction(name, "user:ann:paid", "asset:bank", paid_nano))


def test_no_more_is_paid_unasked_than_a_month_allows(marketplace: Marketplace) -> None:
    """Fees and pending charges count; declined charges and manual top-ups do not."""
    payers, topups = marketplace.payments.payers, marketplace.payments.topups
    marketplace.buy("t1", saves=True)
    with pytest.raises(PaymentInvalid, match=r"one top-up costs 26\.38 USD") as refused:
        payers.top_up_below("ann", 20 * USD, 25 * USD, 24, 26 * USD)
    assert refused.value.field == "per_month"
    price_nano = quote(marketplace.payments.topups.context.terms, 25 * USD).total_nano
    payers.top_up_below("ann", 20 * USD, 25 * USD, 24, 3 * price_nano - 1)
    _spend_all(marketplace, "t1")
    method = marketplace.stripe.state.objects[payers.find("ann").method_id or ""]
    method["declines"] = True
    declined = topups.open_auto("ann", "declined")
    assert declined is not None
    assert (declined.status, topups.spent_automatically("ann")) == ("failed", 0)
    method["declines"] = False
    marketplace.ledger.now_ns += 5 * HOUR_NS
    bought = []
    for number in range(4):
        bought.append(topups.open_auto("ann", f"a{number}") is not None)
        _spend_all(marketplace, f"a{number}")
    assert bought == [True, True, False, False]
    assert topups.spent_automatically("ann") == 2 * price_nano
    # One nano-dollar more has room for the third one.
    payers.top_up_below("ann", 20 * USD, 25 * USD, 24, 3 * price_nano)
    assert topups.open_auto("ann", "a5") is not None
    _spend_all(marketplace, "a5")
    assert topups.open_auto("ann", "a6") is None
    marketplace.ledger.now_ns += 31 * _DAY_NS
    assert topups.spent_automatically("ann") == 0
    assert topups.open_auto("ann", "a7") is not None


def test_gateways_that_buy_at_once_keep_within_the_month_together(
    marketplace: Marketplace, engine: Engine
) -> None:
    marketplace.buy("t1", saves=True)
    price_nano = quote(marketplace.payments.topups.context.terms, 25 * USD).total_nano
    marketplace.payments.payers.top_up_below("ann", 20 * USD, 25 * USD, 24, 2 * price_nano)
    others = [open_marketplace(marketplace.ledger, engine, marketplace.stripe.url) for _ in range(3)]
    for number in range(4):
        _spend_all(marketplace, f"s{number}")
        with ThreadPoolExecutor(len(others)) as threads:
            attempts = [
                threads.submit(other.topups.open_auto, "ann", f"a{number}-{place}")
                for place, other in enumerate(others)
            ]
            for each in attempts:
                each.result(60)
    assert marketplace.payments.topups.spent_automatically("ann") == 2 * price_nano
    assert marketplace.made("payment_intent") == 3, "the one by hand, and two"
    marketplace.check()


@pytest.mark.parametrize(
    ("moment", "begin"),
    [
        ("2026-11-01T00:00:00+00:00", "2026-11-01T00:00:00+00:00"),
        ("2026-10-31T23:59:59+00:00", "2026-10-01T00:00:00+00:00"),
        ("2028-02-29T12:00:00+00:00", "2028-02-01T00:00:00+00:00"),
    ],
)
def test_months_are_those_of_utc(moment: str, begin: str) -> None:
    found_ns = month_start_ns(int(datetime.fromisoformat(moment).timestamp()) * 10**9)
    assert found_ns == int(datetime.fromisoformat(begin).timestamp()) * 10**9


@pytest.mark.parametrize("end", ["requires_payment_method", "canceled", "succeeded"])
def test_a_payment_that_was_long_on_its_way_ends_its_top_up(marketplace: Marketplace, end: str) -> None:
    marketplace.buy("t1", saves=True)
    payers, topups = marketplace.payments.payers, marketplace.payments.topups
    payers.top_up_below("ann", 50 * USD, 50 * USD)
    method = marketplace.stripe.state.objects[payers.find("ann").method_id or ""]
    method["processes"] = True
    first = topups.open_auto("ann", "a1")
    assert first is not None
    assert first.status == "new"
    intent_id = next(marketplace.stripe.state.all("payment_intent"))["id"]
    paying.end_intent(marketplace.stripe.state, intent_id, end)
    topups.intent_changed(intent_id)
    topups.intent_changed(intent_id)
    assert topups.find("a1").status == ("paid" if end == "succeeded" else "failed")
    assert payers.find("ann").auto_failures == (0 if end == "succeeded" else 1)
    method["processes"] = False
    marketplace.ledger.now_ns += 5 * HOUR_NS
    second = topups.open_auto("ann", "a2")
    assert (second is None) is (end == "succeeded")
