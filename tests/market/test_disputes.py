"""Disputes: the text decides, the party that lies about it loses, and needless disputes cost."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.metering.delivered import Delivered
from market.errors import StatementInvalid
from market.protocol.audits.conduct import FEE_NANO_MIN, Conduct, fee_nano, presumption, refusal_to_hear
from market.protocol.audits.disputes import TEXTS_MAX, Dispute, Side, Texts, decide
from market.protocol.audits.prompts import Shown, proved_prompt_tokens
from market.protocol.channels.channel import Channel, delivered, settle
from market.protocol.channels.statements import Delivery, Promise, Receipt, read_receipt
from market.protocol.counting.answer import transcript_of
from market.protocol.counting.token_count import Counting
from market.protocol.sealing.agreement import Context, SealingKey
from market.protocol.sealing.request import open_request, seal_request
from market.protocol.sealing.seen import Seen
from tests.market.parties import STANDING, signed_record
from tests.market.trade import BUYER, DIGEST, SELLER, TERMS, cost_nano, vouch

COUNTING = Counting(None)
PROMPT_TOKENS = 100
BASE_NANO = 5_000
PROMISE: Promise = vouch(0, 1, BASE_NANO, BASE_NANO + cost_nano(PROMPT_TOKENS, 100_000))


def text(tokens: int, letter: str = "x") -> Texts:
    return {0: Delivered(letter * 4 * tokens)}


def signed(
    by: Side, tokens: int, of: Texts, prompt_tokens: int = PROMPT_TOKENS, part: int = 9, cached_tokens: int = 0
) -> Delivery:
    transcript = transcript_of(DIGEST, of)
    receipt = Receipt(
        *(TERMS.channel, 0, 1, part, PROMISE.digest, prompt_tokens, cached_tokens, tokens, transcript),
        is_final=part == 9,
    )
    return read_receipt(signed_record(by, "receipt", receipt, "r", part), PROMISE, TERMS, STANDING)


def lane_nano(tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> int:
    return BASE_NANO + cost_nano(prompt_tokens, tokens)


@given(st.integers(1, 5_000), st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from(["buyer", "seller"]))
def test_of_one_text_the_recount_decides(tokens: int, sellers: int, buyers: int, opened_by: Side) -> None:
    buyers = min(buyers, sellers)
    dispute = Dispute(signed("seller", sellers, text(tokens)), signed("buyer", buyers, text(tokens)), opened_by)
    verdict = decide(dispute, [text(tokens)], COUNTING)
    assert lane_nano(buyers) <= verdict.amount_nano <= max(lane_nano(sellers), BASE_NANO)
    if dispute.is_small:
        assert (verdict.reason, verdict.loser, verdict.completion_tokens) == ("small", opened_by, buyers)
        return
    assert verdict.completion_tokens == tokens
    truthful = signed("seller", tokens, text(tokens)).amount_nano
    assert verdict.amount_nano == min(
        max(truthful, lane_nano(buyers) if buyers else BASE_NANO), lane_nano(sellers)
    )
    if sellers == tokens:
        assert verdict.loser == "buyer"
    if buyers == tokens:
        assert verdict.loser == "seller"


@pytest.mark.parametrize("times", [1.05, 2, 10])
def test_an_inflated_count_never_changes_the_charge(times: float) -> None:
    honest, inflated = signed("buyer", 2_000, text(2_000)), signed("seller", int(2_000 * times), text(2_000))
    channel = delivered(delivered(Channel(TERMS), inflated, SELLER), honest, BUYER)
    due = settle(channel)
    assert due.amount_nano == honest.amount_nano
    assert due.disputed_nano == inflated.amount_nano - honest.amount_nano
    verdict = decide(Dispute(inflated, honest, "seller"), [text(2_000)], COUNTING)
    assert (verdict.amount_nano, verdict.loser) == (honest.amount_nano, "seller")


def test_a_frivolous_dispute_loses_and_the_seller_keeps_what_it_earned() -> None:
    denied = Dispute(signed("seller", 2_000, text(2_000)), signed("buyer", 0, text(2_000)), "buyer")
    verdict = decide(denied, [text(2_000)], COUNTING)
    assert (verdict.amount_nano, verdict.loser) == (lane_nano(2_000), "buyer")
    # Not showing the text helps neither party.
    assert decide(denied, [], COUNTING).amount_nano == lane_nano(2_000)
    assert decide(denied, [text(5)], COUNTING).loser == "buyer"
    assert decide(replace(denied, opened_by="seller"), [], COUNTING).amount_nano == BASE_NANO


def test_a_tail_that_never_came_is_not_paid() -> None:
    withheld = Dispute(signed("seller", 2_000, text(2_000)), signed("buyer", 1_500, text(1_500)), "seller")
    verdict = decide(withheld, [text(2_000), text(1_500)], COUNTING)
    assert (verdict.amount_nano, verdict.reason, verdict.loser) == (lane_nano(1_500), "buyers_text", None)
    # Not while the buyer is known to deny what it gets from all sellers.
    verdict = decide(withheld, [text(2_000), text(1_500)], COUNTING, presumed_wrong="buyer")
    assert (verdict.amount_nano, verdict.reason, verdict.loser) == (lane_nano(2_000), "presumed", "buyer")
    verdict = decide(withheld, [text(2_000), text(1_500)], COUNTING, presumed_wrong="seller")
    assert (verdict.amount_nano, verdict.loser) == (lane_nano(1_500), "seller")


def test_who_denies_a_text_shows_another_one() -> None:
    denied = Dispute(signed("seller", 2_000, text(2_000)), signed("buyer", 10, text(10)), "buyer")
    verdict = decide(denied, [text(2_000)], COUNTING)
    assert (verdict.amount_nano, verdict.reason, verdict.loser) == (lane_nano(2_000), "sellers_text", "buyer")
    # What both signed on the way was delivered, whatever the buyer says at the end.
    known = replace(denied, agreed=signed("buyer", 1_792, text(1_792), part=6))
    verdict = decide(known, [text(2_000), text(10)], COUNTING)
    assert (verdict.amount_nano, verdict.reason, verdict.loser) == (lane_nano(1_792), "agreed_before", "buyer")
    # At the very end neither needs a text.
    ended = replace(denied, agreed=denied.by_buyer)
    verdict = decide(ended, [text(2_000)], COUNTING, presumed_wrong="buyer")
    assert (verdict.amount_nano, verdict.reason, verdict.loser) == (lane_nano(10), "agreed_before", "seller")
    # A buyer that signs less than its own text comes to pays for that text.
    sloppy = Dispute(signed("seller", 2_000, text(2_000)), signed("buyer", 10, text(1_900)), "seller")
    verdict = decide(sloppy, [text(1_900)], COUNTING)
    assert (verdict.amount_nano, verdict.loser) == (lane_nano(1_900), "buyer")


def test_what_is_no_dispute() -> None:
    one = signed("seller", 2_000, text(2_000))
    other = vouch(0, 2, 0, 10**6)
    receipt = Receipt(TERMS.channel, 0, 2, 9, other.digest, 1, 0, 1, DIGEST, is_final=True)
    elsewhere = read_receipt(signed_record("buyer", "receipt", receipt, "r", 9), other, TERMS, STANDING)
    for wrong in (Dispute(one, one, "seller"), Dispute(one, elsewhere, "seller")):
        with pytest.raises(StatementInvalid):
            decide(wrong, [], COUNTING)
    with pytest.raises(StatementInvalid):
        decide(Dispute(one, signed("buyer", 1, text(1)), "seller"), [text(1)] * (TEXTS_MAX + 1), COUNTING)


def test_a_prompt_is_proved_by_its_keys() -> None:
    key = SealingKey()
    context = Context(TERMS.channel, 0, 1, SELLER)
    body = json.dumps({"kind": "completion", "request": {"prompt": "x" * 400}}).encode()
    sealed = seal_request(body, key.public, context)
    opened = open_request(sealed.sealed, key, context, Seen())
    # Either side can show it.
    for agreement in (sealed.agreement, opened.agreement):
        assert (
            proved_prompt_tokens(sealed.digest, Shown(sealed.sealed, agreement.keys("request")), COUNTING) == 103
        )
    other = seal_request(b"{}", key.public, context)
    for digest, about, keys in (
        (other.digest, sealed, sealed.agreement),
        (sealed.digest, sealed, other.agreement),
        (other.digest, other, other.agreement),
    ):
        with pytest.raises(StatementInvalid):
            proved_prompt_tokens(digest, Shown(about.sealed, keys.keys("request")), COUNTING)


@pytest.mark.parametrize(("liar", "sellers", "buyers"), [("seller", 5_000, 100), ("buyer", 100, 0)])
def test_who_lies_about_the_prompt_loses(liar: Side, sellers: int, buyers: int) -> None:
    by_seller = signed("seller", 500, text(500), prompt_tokens=sellers)
    dispute = Dispute(
        by_seller, signed("buyer", 500, text(500), prompt_tokens=buyers), "seller", prompt_tokens=100
    )
    verdict = decide(dispute, [], COUNTING)
    assert (verdict.amount_nano, verdict.loser, verdict.reason) == (lane_nano(500), liar, "prompt")


def test_a_buyer_who_denies_prompt_and_text_pays_the_prompt_whatever_becomes_of_the_text() -> None:
    by_seller, by_buyer = signed("seller", 500, text(500)), signed("buyer", 5, text(5), prompt_tokens=1)
    dispute = Dispute(by_seller, by_buyer, "seller", prompt_tokens=PROMPT_TOKENS)
    for texts, tokens in (([], 5), ([text(500)], 500), ([text(500), text(5)], 5)):
        verdict = decide(dispute, texts, COUNTING)
        assert (verdict.amount_nano, verdict.loser, verdict.reason) == (lane_nano(tokens), "buyer", "prompt")


def test_that_a_prompt_was_cached_the_seller_alone_can_say() -> None:
    by_buyer = signed("buyer", 500, text(500), cached_tokens=PROMPT_TOKENS)
    dispute = Dispute(signed("seller", 500, text(500)), by_buyer, "seller")
    assert decide(dispute, [], COUNTING).amount_nano == by_buyer.amount_nano < lane_nano(500)
    verdict = decide(replace(dispute, prompt_tokens=PROMPT_TOKENS), [], COUNTING)
    # It may have stated otherwise during the answer: no party loses because of that.
    assert (verdict.amount_nano, verdict.loser) == (lane_nano(500), None)


def test_quarrelling_costs_and_has_an_end() -> None:
    assert fee_nano(1) == FEE_NANO_MIN
    assert fee_nano(10**9) == 10**8
    assert refusal_to_hear(Conduct(requests=100, open=2, lost=2)) is None
    assert refusal_to_hear(Conduct(open=3)) == "too_many_open"
    assert refusal_to_hear(Conduct(requests=100, lost=5)) == "too_many_lost"
    honest, liar = Conduct(10_000, undecided=20, undecided_with=9), Conduct(1_000, undecided=20, undecided_with=3)
    assert presumption(honest, liar) == "seller"
    assert presumption(liar, honest) == "buyer"
    assert presumption(liar, liar) is presumption(honest, honest) is None
    # One hostile party alone proves nothing.
    assert Conduct(50, undecided=40, undecided_with=1).is_believed
