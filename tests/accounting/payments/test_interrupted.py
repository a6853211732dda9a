"""What another request, message or gateway does between a look at an undertaking and the step that follows it."""

from collections.abc import Callable
from typing import Any

import pytest

from accounting.errors import InsufficientCredit
from accounting.payments import topups
from accounting.payments.calls import Calls
from accounting.payments.errors import PaymentInvalid, StripeRefused
from accounting.payments.ledger import Ledger
from accounting.payments.payouts import Payouts
from accounting.rules.corrections import correction
from tests.accounting.payments.marketplace import HOUR_NS, USD, Marketplace
from tests.fakes.stripe import connect, paying


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has something happen once, just before what is named is done for one of `keys`, or just behind it."""

    def interrupt(
        owner: Any, name: str, happen: Callable[[], object], key: str = "", *, behind: bool = False
    ) -> None:
        original = getattr(owner, name)

        def interrupted(*arguments: Any, **named: Any) -> Any:
            if key not in str(arguments):
                return original(*arguments, **named)
            monkeypatch.setattr(owner, name, original)
            if not behind:
                happen()
            try:
                return original(*arguments, **named)
            finally:
                if behind:
                    happen()

        monkeypatch.setattr(owner, name, interrupted)

    return interrupt


def test_a_payout_that_is_cancelled_is_never_sent(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    """One gateway is about to ask for the transfer; another one finds the seller frozen, and frees the money."""
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)

    def freeze() -> None:
        marketplace.payments.sellers.freeze("sam", "odd")
        assert marketplace.payments.payouts.drive("p1").status == "cancelled"

    interrupt(Calls, "make", freeze, "payout-p1")
    with pytest.raises(StripeRefused):
        marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    assert (marketplace.payments.payouts.find("p1").status, marketplace.made("transfer")) == ("cancelled", 0)
    assert marketplace.ledger.balance("seller:sam:payable").available_nano == 50 * USD
    marketplace.payments.sellers.freeze("sam", None)
    assert marketplace.payments.payouts.drive("p1").status == "cancelled"
    marketplace.check()


def test_a_payout_that_may_have_been_sent_is_not_cancelled(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 50 * USD)

    def freeze() -> None:
        marketplace.payments.sellers.freeze("sam", "odd")
        assert marketplace.payments.payouts.drive("p1").status == "transferred"

    interrupt(Calls, "_send", freeze, "payout-p1")
    assert marketplace.payments.payouts.open("p1", "sam", 20 * USD).status == "transferred"
    assert (marketplace.made("transfer"), marketplace.balance("seller:sam:payable")) == (1, 30 * USD)
    marketplace.check()


def test_a_payout_that_another_one_found_enough_for_is_not_refused(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    marketplace.funds(100)
    marketplace.seller("sam", 15 * USD)

    def earn() -> None:
        marketplace.ledger.post(correction("more", "asset:bank", "seller:sam:payable", 15 * USD))
        assert marketplace.payments.payouts.drive("p1").status == "paying"

    interrupt(Ledger, "book", earn, "pay:payout-p1:hold", behind=True)
    assert marketplace.payments.payouts.open("p1", "sam", 20 * USD).status == "paying"
    assert (marketplace.made("transfer"), marketplace.balance("seller:sam:payable")) == (1, 10 * USD)
    marketplace.check()


def test_a_payout_that_was_refused_keeps_nothing_aside(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    """There is enough by now, but the earlier request was told that there is not."""
    marketplace.funds(100)
    marketplace.seller("sam", 15 * USD)
    payouts = marketplace.payments.payouts

    def refuse() -> None:
        with pytest.raises(InsufficientCredit):
            payouts.drive("p1")
        marketplace.ledger.post(correction("more", "asset:bank", "seller:sam:payable", 15 * USD))

    interrupt(Ledger, "book", refuse, "pay:payout-p1:hold")
    assert payouts.open("p1", "sam", 20 * USD).status == "refused"
    assert marketplace.ledger.balance("seller:sam:payable").available_nano == 30 * USD
    assert payouts.open("p2", "sam", 30 * USD).status == "paying"
    marketplace.check()


def test_a_bank_that_is_faster_than_we_write_is_asked_again(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    """It has sent the money back before the attempt is noted: the next one is not taken for that one."""
    marketplace.funds(100)
    account_id = marketplace.seller("sam", 50 * USD)

    def send_back() -> None:
        (payout,) = _bank_payouts(marketplace)
        connect.end_payout(marketplace.stripe.state, payout["id"], succeeds=False)
        marketplace.payments.payouts.payout_changed(account_id, payout["id"])

    interrupt(Calls, "make", send_back, "payout-p1-bank-1", behind=True)
    marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    marketplace.ledger.now_ns += 2 * HOUR_NS
    marketplace.settle()
    assert [call.key for call in marketplace.stripe.calls if call.path == "payouts"] == [
        "payout-p1-bank-1",
        "payout-p1-bank-2",
    ]
    _, second = _bank_payouts(marketplace)
    connect.end_payout(marketplace.stripe.state, second["id"], succeeds=True)
    marketplace.settle()
    assert marketplace.payments.payouts.find("p1").status == "paid"
    marketplace.check()


def test_a_payout_that_comes_back_while_it_is_noted_as_paid_is_tried_again(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    marketplace.funds(100)
    account_id = marketplace.seller("sam", 50 * USD)
    marketplace.payments.payouts.open("p1", "sam", 20 * USD)
    (first,) = _bank_payouts(marketplace)
    connect.end_payout(marketplace.stripe.state, first["id"], succeeds=True)

    def send_back() -> None:
        connect.end_payout(marketplace.stripe.state, first["id"], succeeds=False)
        marketplace.payments.payouts.payout_changed(account_id, first["id"])

    interrupt(Payouts, "_move", send_back, "paid")
    marketplace.payments.payouts.payout_changed(account_id, first["id"])
    assert marketplace.payments.payouts.find("p1").status == "transferred"
    marketplace.ledger.now_ns += 2 * HOUR_NS
    marketplace.settle()
    _, second = _bank_payouts(marketplace)
    connect.end_payout(marketplace.stripe.state, second["id"], succeeds=True)
    marketplace.settle()
    assert marketplace.payments.payouts.find("p1").status == "paid"
    marketplace.check()


def test_a_refund_that_another_one_found_enough_for_is_not_refused(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    marketplace.buy("t1")
    running = marketplace.ledger.hold("running", "ann", 20 * USD)

    def end() -> None:
        marketplace.ledger.holds.release(running).result(30)
        assert marketplace.payments.refunds.drive("r1").status == "sent"

    interrupt(Ledger, "book", end, "rf:refund-r1:hold", behind=True)
    refund = marketplace.payments.refunds.open("r1", "t1", 20 * USD)
    assert refund.status == "sent"
    with pytest.raises(PaymentInvalid):
        marketplace.payments.refunds.open("r2", "t1", 20 * USD)
    paying.end_refund(marketplace.stripe.state, refund.refund_id or "", succeeds=True)
    marketplace.settle()
    assert marketplace.payments.refunds.find("r1").status == "succeeded"
    marketplace.check()


def test_a_refund_that_was_refused_keeps_nothing_aside(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    marketplace.buy("t1")
    running = marketplace.ledger.hold("running", "ann", 20 * USD)

    def refuse() -> None:
        with pytest.raises(InsufficientCredit):
            marketplace.payments.refunds.drive("r1")
        marketplace.ledger.holds.release(running).result(30)

    interrupt(Ledger, "book", refuse, "rf:refund-r1:hold")
    assert marketplace.payments.refunds.open("r1", "t1", 20 * USD).status == "refused"
    assert (marketplace.ledger.balance("user:ann:paid").available_nano, marketplace.made("refund")) == (
        25 * USD,
        0,
    )
    marketplace.check()


def test_what_was_bought_unasked_a_moment_ago_is_seen_before_more_is(
    marketplace: Marketplace, interrupt: Callable[..., None]
) -> None:
    """A payment that was on its way ends between the look at what is left and the look at what is on its way."""
    marketplace.buy("t1", saves=True)
    payers = marketplace.payments.payers
    payers.top_up_below("ann", 50 * USD, 50 * USD)
    marketplace.stripe.state.objects[payers.find("ann").method_id or ""]["processes"] = True
    marketplace.payments.topups.open_auto("ann", "a1")
    marketplace.stripe.state.objects[payers.find("ann").method_id or ""]["processes"] = False
    intent_id = next(marketplace.stripe.state.all("payment_intent"))["id"]

    def end() -> None:
        paying.end_intent(marketplace.stripe.state, intent_id, "succeeded")
        marketplace.payments.topups.intent_changed(intent_id)

    interrupt(topups, "locked", end)
    assert marketplace.payments.topups.open_auto("ann", "a2") is None
    assert (marketplace.made("payment_intent"), marketplace.balance("user:ann:paid")) == (2, 75 * USD)
    marketplace.check()


def test_a_cancelled_top_up_is_never_charged(marketplace: Marketplace, interrupt: Callable[..., None]) -> None:
    """One gateway is about to charge when another one finds that the user has taken the wish back."""
    marketplace.buy("t1", saves=True)
    marketplace.payments.payers.top_up_below("ann", 50 * USD, 50 * USD)

    def give_up() -> None:
        marketplace.payments.payers.top_up_no_more("ann")
        assert marketplace.payments.topups.drive("a1").status == "failed"

    interrupt(Calls, "make", give_up, "topup-a1")
    bought = marketplace.payments.topups.open_auto("ann", "a1")
    assert bought is not None
    assert (bought.status, marketplace.made("payment_intent")) == ("failed", 1)
    assert marketplace.payments.payers.find("ann").auto_failures == 0
    marketplace.check()


def _bank_payouts(marketplace: Marketplace) -> list[dict[str, Any]]:
    return [found for found in marketplace.stripe.state.objects.values() if found["object"] == "payout"]
