"""Channels: whatever is lost, doubled or out of order, what was delivered is charged, within what was promised."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.errors import StatementInvalid
from market.protocol.channels.channel import Channel, Due, delivered, merge, promised, settle
from market.protocol.channels.evidence import evidence, read_evidence
from market.protocol.channels.statements import Delivery, Receipt, Voucher, read_receipt, read_voucher
from market.protocol.channels.terms import Allocation, ChannelTerms, read_allocation
from market.protocol.channels.transcript import INTERIM_TOKENS, TextKind, Transcript, needs_receipt
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from market.protocol.records.canonical import INTEGER_MAX
from market.protocol.records.envelope import open_record
from tests.examples import examples
from tests.market.parties import STANDING, id_of, signed_record
from tests.market.trade import (
    BUYER,
    DIGEST,
    PRICES,
    SELLER,
    TERMS,
    Request,
    Trade,
    cost_nano,
    known,
    receive,
    vouch,
    voucher_record,
)

honest = st.builds(
    Request, st.integers(0, 2), st.integers(0, 500), st.integers(0, 600) | st.just(0), is_final=st.booleans()
)
lying = st.builds(
    Request,
    st.integers(0, 1),
    st.integers(0, 500),
    st.integers(0, 600),
    tells=st.sampled_from([0, 33, 900, 50_000]),
)


def trade_of(requests: list[Request], *, buyer_signs_last: bool = True) -> Trade:
    trade = Trade()
    for number, request in enumerate(requests, 1):
        trade.serve(request, buyer_signs=buyer_signs_last or number < len(requests))
    return trade


@given(st.lists(honest, max_size=6), st.randoms())
@settings(max_examples=examples(20, 60))
def test_all_that_was_signed_comes_to_what_was_delivered(requests: list[Request], chance: random.Random) -> None:
    trade = trade_of(requests)
    shuffled = trade.pieces * 2
    chance.shuffle(shuffled)
    due = settle(known(shuffled))
    assert due == Due(trade.truth_nano)
    assert type(due.amount_nano) is int


@given(st.lists(honest, max_size=6), st.data())
@settings(max_examples=examples(20, 60))
def test_parts_of_it_come_to_no_more_and_later_parts_only_add(
    requests: list[Request], data: st.DataObject
) -> None:
    trade = trade_of(requests)
    seen = Channel(TERMS)
    before = Due()
    for piece in data.draw(st.lists(st.sampled_from(trade.pieces), max_size=12) if requests else st.just([])):
        seen = merge(seen, piece)
        now = settle(seen)
        assert before.confirmed_nano <= now.confirmed_nano <= now.amount_nano <= trade.truth_nano
        assert before.amount_nano <= now.amount_nano
        assert now.disputed_nano == 0
        before = now


@given(st.lists(honest, min_size=1, max_size=5), st.data())
@settings(max_examples=examples(20, 60))
def test_merging_is_a_join(requests: list[Request], data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from(trade_of(requests).pieces), max_size=6).map(known)
    a, b, c = data.draw(pieces), data.draw(pieces), data.draw(pieces)
    assert merge(a, b) == merge(b, a)
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)
    assert merge(a, a) == a


@given(st.lists(honest, min_size=1, max_size=5))
@settings(max_examples=examples(20, 60))
def test_each_side_alone_can_settle_all_of_it(requests: list[Request]) -> None:
    """The buyer vanishes without a word after the last request; or the seller's records are all lost."""
    trade = trade_of(requests, buyer_signs_last=False)
    due = settle(known(trade.by_seller))
    assert due.amount_nano == trade.truth_nano
    assert due.disputed_nano == 0
    assert settle(known(trade_of(requests).by_buyer)) == Due(trade.truth_nano)


@given(st.lists(lying, min_size=1, max_size=5), st.randoms())
@settings(max_examples=examples(20, 60))
def test_a_seller_that_counts_more_gets_no_more(requests: list[Request], chance: random.Random) -> None:
    trade = trade_of(requests)
    chance.shuffle(trade.by_seller)
    due = settle(known(trade.pieces))
    assert due.amount_nano == trade.truth_nano
    # Without the buyer's word it is what the vouchers allow, and no more.
    ceilings = [piece.lanes[n].assent for piece in trade.by_buyer for n in piece.lanes]
    most_nano = sum(
        max(
            assent.voucher.ceiling_nano
            for assent in ceilings
            if assent and not hasattr(assent, "receipt") and assent.voucher.lane == lane
        )
        for lane in {request.lane for request in requests}
    )
    assert settle(known(trade.by_seller)).amount_nano <= most_nano


def test_a_seller_killed_anywhere_is_owed_what_it_last_signed() -> None:
    trade = trade_of([Request(0, 100, 1_000)], buyer_signs_last=False)
    for stop, piece in enumerate(trade.by_seller[:-1], 1):
        assert settle(piece).claimed_nano == cost_nano(100, stop * INTERIM_TOKENS)


def test_a_voucher_confirms_what_came_before_it_also_in_the_sellers_hands() -> None:
    trade = trade_of([Request(0, 100, 500), Request(0, 100, 300)], buyer_signs_last=False)
    last = trade.by_seller[-1]
    assert settle(last) == Due(cost_nano(100, 500), claimed_nano=cost_nano(100, 300))


@given(st.lists(honest, max_size=5), st.data())
@settings(max_examples=examples(15, 40))
def test_a_stranger_comes_to_the_same_from_the_records_alone(requests: list[Request], data: st.DataObject) -> None:
    pieces = trade_of(requests).pieces
    channel = known(data.draw(st.lists(st.sampled_from(pieces), max_size=8)) if pieces else [])
    records = data.draw(st.permutations(evidence(channel)))
    assert len(records) <= 4 * len(channel.lanes)
    again = [open_record(record.raw) for record in records]
    assert settle(read_evidence(again, TERMS, STANDING)) == settle(channel)


def test_receipts_without_their_voucher_prove_nothing() -> None:
    records = evidence(known(trade_of([Request(0, 100, 500)]).by_seller))
    receipts = [record for record in records if record.kind == "receipt"]
    with pytest.raises(StatementInvalid, match="missing from the records"):
        read_evidence(receipts, TERMS, STANDING)
    with pytest.raises(StatementInvalid, match="at most"):
        read_evidence([signed_record("buyer", "payment", PRICES)], TERMS, STANDING)


def test_nothing_delivered_costs_nothing_not_even_the_prompt() -> None:
    assert settle(known(trade_of([Request(0, 400, 0)]).pieces)) == Due(0)


def test_nothing_passes_the_voucher_or_the_allocation() -> None:
    promise = vouch(0, 1, 0, 1_000)
    claim = receive("seller", promise, 10**6, 10**6, 0, is_final=True)
    channel = delivered(Channel(TERMS), claim, SELLER)
    assert settle(channel) == Due(0, claimed_nano=1_000)
    assert settle(channel, limit_nano=400) == Due(0, claimed_nano=400)
    signed = delivered(channel, receive("buyer", promise, 10**6, 10**6, 0, is_final=True), BUYER)
    assert settle(signed) == Due(1_000)
    assert settle(signed, limit_nano=400) == Due(400)


def test_small_differences_are_the_buyers_and_large_ones_are_disputed() -> None:
    def settled(theirs_tokens: int) -> Due:
        promise = vouch(0, 1, 0, 10**9)
        channel = delivered(
            Channel(TERMS), receive("seller", promise, 100, theirs_tokens, 0, is_final=True), SELLER
        )
        return settle(delivered(channel, receive("buyer", promise, 100, 1_000, 0, is_final=True), BUYER))

    assert settled(1_000 + 32) == Due(cost_nano(100, 1_000))
    excess_nano = cost_nano(100, 1_200) - cost_nano(100, 1_000)
    assert settled(1_200) == Due(cost_nano(100, 1_000), disputed_nano=excess_nano)


def test_a_buyer_that_denies_what_came_before_is_disputed_and_cannot_take_back_what_it_signed() -> None:
    first = vouch(0, 1, 0, 10**9)
    claim = delivered(Channel(TERMS), receive("seller", first, 100, 500, 0, is_final=True), SELLER)
    denying = promised(Channel(TERMS), vouch(0, 2, 0, 10**9))
    assert settle(merge(claim, denying)) == Due(0, disputed_nano=cost_nano(100, 500))
    signed = delivered(claim, receive("buyer", first, 100, 500, 0, is_final=True), BUYER)
    assert settle(merge(signed, denying)) == Due(cost_nano(100, 500))


@pytest.mark.parametrize("prompt_tokens", range(100, 110))
def test_a_receipt_outlives_the_voucher_that_adds_it_up(prompt_tokens: int) -> None:
    """Whichever of the two came first, whatever their digests are: what was signed of a request stays known."""
    trade = trade_of([Request(0, prompt_tokens, 500), Request(0, 100, 300)], buyer_signs_last=False)
    for order in (trade.by_buyer, trade.by_buyer[::-1]):
        assent = known(order).lanes[0].assent
        assert isinstance(assent, Delivery)
        assert (assent.receipt.seq, assent.amount_nano) == (1, cost_nano(prompt_tokens, 500))


def test_statements_that_fit_nothing_are_refused() -> None:
    voucher = Voucher(TERMS.channel, 0, 1, DIGEST, DIGEST, PRICES, Amount(5), Amount(9))
    promise = read_voucher(voucher_record(voucher), TERMS, STANDING)
    wrong = [
        voucher_record(voucher, by="seller"),
        signed_record("eve", "voucher", voucher, issuer=BUYER),
        voucher_record(Voucher(DIGEST, 0, 1, DIGEST, DIGEST, PRICES, Amount(5), Amount(9))),
        voucher_record(Voucher(TERMS.channel, 0, 0, DIGEST, DIGEST, PRICES, Amount(5), Amount(9))),
        voucher_record(Voucher(TERMS.channel, 0, 1, DIGEST, DIGEST, PRICES, Amount(5), Amount(4))),
    ]
    for record in wrong:
        with pytest.raises(StatementInvalid):
            read_voucher(record, TERMS, STANDING)
    fitting = Receipt(TERMS.channel, 0, 1, 0, promise.digest, 5, 0, 5, DIGEST, True)
    assert read_receipt(signed_record("seller", "receipt", fitting), promise, TERMS, STANDING).receipt == fitting
    for by, receipt in (
        ("eve", fitting),
        ("seller", Receipt(TERMS.channel, 0, 2, 0, promise.digest, 5, 0, 5, DIGEST, True)),
        ("seller", Receipt(TERMS.channel, 0, 1, 0, DIGEST, 5, 0, 5, DIGEST, True)),
        ("seller", Receipt(TERMS.channel, 0, 1, 0, promise.digest, 5, 6, 5, DIGEST, True)),
    ):
        with pytest.raises(StatementInvalid):
            read_receipt(signed_record(by, "receipt", receipt), promise, TERMS, STANDING)
    with pytest.raises(StatementInvalid):
        read_receipt(signed_record("eve", "receipt", fitting, issuer=SELLER), promise, TERMS, STANDING)
    with pytest.raises(StatementInvalid):
        merge(Channel(TERMS), Channel(ChannelTerms(SELLER, BUYER, DIGEST)))


def test_prices_beyond_all_sense_are_refused_where_they_are_read() -> None:
    dear = Prices(Amount(10**15), Amount(10**15), Amount(0))
    voucher = Voucher(TERMS.channel, 0, INTEGER_MAX, DIGEST, DIGEST, dear, Amount(0), Amount(9))
    promise = read_voucher(voucher_record(voucher), TERMS, STANDING)
    receipt = Receipt(TERMS.channel, 0, INTEGER_MAX, 0, promise.digest, 10**9, 0, 10**9, DIGEST, True)
    with pytest.raises(StatementInvalid, match="price"):
        read_receipt(signed_record("seller", "receipt", receipt), promise, TERMS, STANDING)


def test_an_allocation_opens_one_channel_and_only_the_marketplace_makes_it() -> None:
    body = Allocation(BUYER, SELLER, Amount(5_000), "hold:r1", 3)
    record = signed_record("marketplace", "allocation", body, lasts_ms=3_600_000)
    terms, allocation = read_allocation(record, id_of("marketplace"), STANDING)
    assert (terms.buyer, terms.seller, allocation) == (BUYER, SELLER, body)
    assert terms.channel != TERMS.channel
    with pytest.raises(StatementInvalid):
        read_allocation(record, id_of("eve"), STANDING)


texts = st.lists(
    st.tuples(st.text(max_size=8), st.sampled_from(["content", "reasoning", "calls"]), st.integers(0, 1))
)


@given(texts, st.data())
def test_a_transcript_is_of_the_text_and_not_of_its_pieces(
    pieces: list[tuple[str, TextKind, int]], data: st.DataObject
) -> None:
    whole, cut = Transcript(DIGEST), Transcript(DIGEST)
    for text, kind, choice in pieces:
        whole.add(text, kind, choice)
    # Each text as a whole, in another order.
    for kind, choice in data.draw(st.permutations(sorted({piece[1:] for piece in pieces}))):
        cut.add("".join(text for text, *of in pieces if tuple(of) == (kind, choice)), kind, choice)
    assert whole.digest() == cut.digest()
    assert Transcript(BUYER).digest() != Transcript(DIGEST).digest()
    before = whole.digest()
    whole.add("x")
    assert whole.digest() != before


def test_halves_of_a_character_that_came_apart_are_one_again() -> None:
    whole, halves = Transcript(DIGEST), Transcript(DIGEST)
    whole.add("\U0001f600")
    halves.add("\ud83d")
    halves.add("\ude00")
    assert whole.digest() == halves.digest()


def test_receipts_come_every_256_tokens() -> None:
    assert not needs_receipt(0, 255)
    assert needs_receipt(256, 512)
