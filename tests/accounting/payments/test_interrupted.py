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
from tests.accounting.payments.house import HOUR_NS, USD, Marketplace
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


def test_a_payout_that_is_cancelled_is_never_sent(house: Marketplace, interrupt: Callable[..., None]) -> None:
    """One gateway is about to ask for the transfer; another one finds the seller frozen, and frees the money."""
    house.funds(100)
    house.seller("sam", 50 * USD)

    def freeze() -> None:
        house.payments.sellers.freeze("sam", "odd")
        assert house.payments.payouts.drive("p1").status == "cancelled"

    interrupt(Calls, "make", freeze, "payout-p1")
    with pytest.raises(StripeRefused):
        house.payments.payouts.open("p1", "sam", 20 * USD)
    assert (house.payments.payouts.find("p1").status, house.made("transfer")) == ("cancelled", 0)
    assert house.ledger.balance("seller:sam:payable").available_nano == 50 * USD
    house.payments.sellers.freeze("sam", None)
    assert house.payments.payouts.drive("p1").status == "cancelled"
    house.check()


def test_a_payout_that_may_have_been_sent_is_not_cancelled(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    house.funds(100)
    house.seller("sam", 50 * USD)

    def freeze() -> None:
        house.payments.sellers.freeze("sam", "odd")
        assert house.payments.payouts.drive("p1").status == "transferred"

    interrupt(Calls, "_asked", freeze, "payout-p1")
    assert house.payments.payouts.open("p1", "sam", 20 * USD).status == "transferred"
    assert (house.made("transfer"), house.balance("seller:sam:payable")) == (1, 30 * USD)
    house.check()


def test_a_payout_that_another_one_found_enough_for_is_not_refused(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    house.funds(100)
    house.seller("sam", 15 * USD)

    def earn() -> None:
        house.ledger.post(correction("more", "asset:bank", "seller:sam:payable", 15 * USD))
        assert house.payments.payouts.drive("p1").status == "paying"

    interrupt(Ledger, "book", earn, "pay:payout-p1:hold", behind=True)
    assert house.payments.payouts.open("p1", "sam", 20 * USD).status == "paying"
    assert (house.made("transfer"), house.balance("seller:sam:payable")) == (1, 10 * USD)
    house.check()


def test_a_payout_that_was_refused_keeps_nothing_aside(house: Marketplace, interrupt: Callable[..., None]) -> None:
    """It is enough by now; but whoever asked a moment ago was told that it is not."""
    house.funds(100)
    house.seller("sam", 15 * USD)
    payouts = house.payments.payouts

    def refuse() -> None:
        with pytest.raises(InsufficientCredit):
            payouts.drive("p1")
        house.ledger.post(correction("more", "asset:bank", "seller:sam:payable", 15 * USD))

    interrupt(Ledger, "book", refuse, "pay:payout-p1:hold")
    assert payouts.open("p1", "sam", 20 * USD).status == "refused"
    assert house.ledger.balance("seller:sam:payable").available_nano == 30 * USD
    assert payouts.open("p2", "sam", 30 * USD).status == "paying"
    house.check()


def test_a_bank_that_is_faster_than_we_write_is_asked_again(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    """It has sent the money back before the attempt is noted: the next one is not taken for that one."""
    house.funds(100)
    account_id = house.seller("sam", 50 * USD)

    def send_back() -> None:
        (payout,) = _bank_payouts(house)
        connect.end_payout(house.stripe.state, payout["id"], succeeds=False)
        house.payments.payouts.payout_changed(account_id, payout["id"])

    interrupt(Calls, "make", send_back, "payout-p1-bank-1", behind=True)
    house.payments.payouts.open("p1", "sam", 20 * USD)
    house.ledger.now_ns += 2 * HOUR_NS
    house.settle()
    assert [call.key for call in house.stripe.calls if call.path == "payouts"] == [
        "payout-p1-bank-1",
        "payout-p1-bank-2",
    ]
    _, second = _bank_payouts(house)
    connect.end_payout(house.stripe.state, second["id"], succeeds=True)
    house.settle()
    assert house.payments.payouts.find("p1").status == "paid"
    house.check()


def test_a_payout_that_comes_back_while_it_is_noted_as_paid_is_tried_again(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    house.funds(100)
    account_id = house.seller("sam", 50 * USD)
    house.payments.payouts.open("p1", "sam", 20 * USD)
    (first,) = _bank_payouts(house)
    connect.end_payout(house.stripe.state, first["id"], succeeds=True)

    def send_back() -> None:
        connect.end_payout(house.stripe.state, first["id"], succeeds=False)
        house.payments.payouts.payout_changed(account_id, first["id"])

    interrupt(Payouts, "_move", send_back, "paid")
    house.payments.payouts.payout_changed(account_id, first["id"])
    assert house.payments.payouts.find("p1").status == "transferred"
    house.ledger.now_ns += 2 * HOUR_NS
    house.settle()
    _, second = _bank_payouts(house)
    connect.end_payout(house.stripe.state, second["id"], succeeds=True)
    house.settle()
    assert house.payments.payouts.find("p1").status == "paid"
    house.check()


def test_a_refund_that_another_one_found_enough_for_is_not_refused(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    house.buy("t1")
    running = house.ledger.hold("running", "ann", 20 * USD)

    def end() -> None:
        house.ledger.holds.release(running).result(30)
        assert house.payments.refunds.drive("r1").status == "sent"

    interrupt(Ledger, "book", end, "rf:refund-r1:hold", behind=True)
    refund = house.payments.refunds.open("r1", "t1", 20 * USD)
    assert refund.status == "sent"
    with pytest.raises(PaymentInvalid):
        house.payments.refunds.open("r2", "t1", 20 * USD)
    paying.end_refund(house.stripe.state, refund.refund_id or "", succeeds=True)
    house.settle()
    assert house.payments.refunds.find("r1").status == "succeeded"
    house.check()


def test_a_refund_that_was_refused_keeps_nothing_aside(house: Marketplace, interrupt: Callable[..., None]) -> None:
    house.buy("t1")
    running = house.ledger.hold("running", "ann", 20 * USD)

    def refuse() -> None:
        with pytest.raises(InsufficientCredit):
            house.payments.refunds.drive("r1")
        house.ledger.holds.release(running).result(30)

    interrupt(Ledger, "book", refuse, "rf:refund-r1:hold")
    assert house.payments.refunds.open("r1", "t1", 20 * USD).status == "refused"
    assert (house.ledger.balance("user:ann:paid").available_nano, house.made("refund")) == (25 * USD, 0)
    house.check()


def test_what_was_bought_unasked_a_moment_ago_is_seen_before_more_is(
    house: Marketplace, interrupt: Callable[..., None]
) -> None:
    """A payment that was on its way ends between the look at what is left and the look at what is on its way."""
    house.buy("t1", saves=True)
    payers = house.payments.payers
    payers.top_up_below("ann", 50 * USD, 50 * USD)
    house.stripe.state.objects[payers.find("ann").method_id or ""]["processes"] = True
    house.payments.topups.open_auto("ann", "a1")
    house.stripe.state.objects[payers.find("ann").method_id or ""]["processes"] = False
    intent_id = next(house.stripe.state.all("payment_intent"))["id"]

    def end() -> None:
        paying.end_intent(house.stripe.state, intent_id, "succeeded")
        house.payments.topups.intent_changed(intent_id)

    interrupt(topups, "locked", end)
    assert house.payments.topups.open_auto("ann", "a2") is None
    assert (house.made("payment_intent"), house.balance("user:ann:paid")) == (2, 75 * USD)
    house.check()


def test_what_is_wanted_no_more_is_never_charged(house: Marketplace, interrupt: Callable[..., None]) -> None:
    """One gateway is about to charge when another one finds that the user has taken the wish back."""
    house.buy("t1", saves=True)
    house.payments.payers.top_up_below("ann", 50 * USD, 50 * USD)

    def give_up() -> None:
        house.payments.payers.top_up_no_more("ann")
        assert house.payments.topups.drive("a1").status == "failed"

    interrupt(Calls, "make", give_up, "topup-a1")
    bought = house.payments.topups.open_auto("ann", "a1")
    assert bought is not None
    assert (bought.status, house.made("payment_intent")) == ("failed", 1)
    assert house.payments.payers.find("ann").auto_failures == 0
    house.check()


def _bank_payouts(house: Marketplace) -> list[dict[str, Any]]:
    return [found for found in house.stripe.state.objects.values() if found["object"] == "payout"]
