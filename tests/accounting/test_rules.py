"""What rules refuse to make an event of, and what they may not depend on; the rest is the economy's."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.errors import AmountInvalid, PostingInvalid
from accounting.ledger.postings import Posting
from accounting.rules import charged, debts, earnings, grants, invoices, market, usage_refunds, variances
from accounting.rules.parts import HeldPart, Share
from accounting.rules.usage_refunds import RefundParties
from tests.accounting.ledgers import ANSWER_S, LedgerService, outcome, usage

ORDER = market.PurchaseHold("r1", (HeldPart("pool:lab:paid", 30, 1), HeldPart("user:ann:paid", 70, 2)))
NOTHING = RefundParties()


def _charge(amount: int, fee_bps: int) -> charged.Charged:
    found = charged.charged("r1", market.capture(ORDER, market.SellerBill("sam", amount, fee_bps)).legs)
    assert found is not None
    return found


@given(st.integers(1, 100), st.integers(0, 10_000), st.integers(1, 100), st.integers(0, 100))
def test_a_refund_is_exact_and_takes_no_more_than_each_received(
    amount: int, fee_bps: int, back: int, has: int
) -> None:
    charge = _charge(amount, fee_bps)
    standing = RefundParties((Share("seller:sam:maturing", has),))
    if back > amount:
        with pytest.raises(PostingInvalid):
            usage_refunds.refund(charge, back, "test", standing)
        return
    legs = usage_refunds.refund(charge, back, "test", standing).legs
    into = [leg for leg in legs if leg.credit == "clearing:market"]
    out = {leg.credit: leg.amount_nano for leg in legs if leg.debit == "clearing:market"}
    assert sum(leg.amount_nano for leg in into) == sum(out.values()) == back
    assert sum(leg.amount_nano for leg in into if leg.debit == "income:market_fee") <= charge.income_nano
    assert sum(leg.amount_nano for leg in into if "sell" in leg.debit) <= charge.partner_nano
    assert all(out.get(share.account, 0) <= share.amount_nano for share in charge.paid)


@pytest.mark.parametrize("amount", [0, -1, 61, 10**15])
def test_a_refund_is_of_something_and_at_most_of_all(amount: int) -> None:
    with pytest.raises(PostingInvalid):
        usage_refunds.refund(_charge(60, 1000), amount, "test", NOTHING)


def test_what_was_charged_nothing_has_nothing_to_give_back() -> None:
    assert charged.charged("r1", market.capture(ORDER, market.SellerBill("sam", 0, 1000)).legs) is None
    assert charged.charged_together("r1", (), charged.RequestCharge(0, 7, "acme")) is None


def test_a_refund_by_an_unknown_provider_is_refused() -> None:
    lease = charged.charged_together("r1", [], charged.RequestCharge(60, 40, "acme"))
    assert lease is not None
    with pytest.raises(PostingInvalid):
        usage_refunds.refund(lease, 60, "test", NOTHING, provider_credits=True)


def test_given_credits_buy_nothing_on_the_market() -> None:
    with pytest.raises(PostingInvalid, match="promotional credits, which cannot pay sellers"):
        market.hold("r1", [Share("user:ann:paid", 5), Share("user:ann:promo:l1", 5)], 2**60)


@pytest.mark.parametrize("fee_bps", [-1, 10_001, 1.5, True, "10"])
def test_a_fee_is_a_part_of_the_charge(fee_bps: Any) -> None:
    with pytest.raises(PostingInvalid):
        market.SellerBill("sam", 100, fee_bps)


@pytest.mark.parametrize("amount", [-1, 10**15 + 1, 1.5, True])
def test_amounts_are_those_that_an_event_may_move(amount: Any) -> None:
    makers: tuple[Callable[[], Posting], ...] = (
        lambda: grants.pool_credit("c1", "lab", amount, "test"),
        lambda: grants.expire("l1", "ann", amount, 1),
        lambda: earnings.matured("sam", "2026-11-22", amount),
        lambda: invoices.invoice_paid("acme", "i1", 5, amount),
        lambda: variances.owed_beyond("r1", "acme", 5, amount),
        lambda: debts.written_off("i1", "asset:user_recv:ann", amount, "gone"),
    )
    for make in makers:
        with pytest.raises(AmountInvalid):
            make()


@pytest.mark.parametrize(
    ("accrued", "billed", "is_alarming"),
    [(1000, 1010, False), (1000, 1011, True), (1000, 989, True), (0, 1, True)],
)
def test_a_bill_that_differs_by_more_than_a_hundredth_is_told(
    accrued: int, billed: int, is_alarming: bool
) -> None:
    assert invoices.is_alarming(accrued, billed) is is_alarming


@pytest.mark.parametrize("owed", [0, 5, 6])
def test_only_what_is_owed_beyond_is_a_variance(owed: int) -> None:
    if owed <= 5:
        with pytest.raises(PostingInvalid):
            variances.owed_beyond("r1", "market", 5, owed)
        return
    (leg,) = variances.owed_beyond("r1", "market", 5, owed).legs
    assert (leg.debit, leg.credit, leg.amount_nano) == ("expense:burst_variance", "provider:market:accrued", 1)


def test_one_request_is_bought_once_whichever_seller_delivers(ledger: LedgerService) -> None:
    """Two sellers that both believe to have answered: the first is paid, the other is not."""
    ledger.credit("ann", 100)
    placed = ledger.post(market.hold("r1", [Share("user:ann:paid", 100)], ledger.now_ns))
    order = market.PurchaseHold("r1", (HeldPart("user:ann:paid", 100, placed.transfer_seqs[0]),))
    sales = [market.SellerBill(seller, 50, 1000) for seller in ("sam", "sue")]
    futures = [ledger.poster.submit(market.capture(order, sale, usage("r1", lane="market"))) for sale in sales]
    assert [outcome(future) for future in futures] == ["posted", "IdempotencyConflict"]
    assert ledger.balance("seller:sam:maturing").posted_nano == 45
    assert ledger.balance("seller:sue:maturing").posted_nano == 0
    assert ledger.reaper.sweep(ANSWER_S) == 0
