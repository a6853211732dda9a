"""Buyer, seller and marketplace over a wire that loses, doubles and reorders records, and breaks streams."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from market.protocol.channels.admission import ChannelCredit, PricedRequest, refusal, reserved_nano
from market.protocol.channels.channel import Channel, delivered, merge, promised, settle
from market.protocol.channels.next_voucher import VoucherOrder, free_lane, next_voucher
from market.protocol.channels.statements import Delivery, Promise
from tests.examples import examples
from tests.market.parties import NOW_MS
from tests.market.trade import BUYER, DIGEST, PRICES, SELLER, TERMS, cost_nano, receive, vouch

PROMPT_TOKENS = 100
LIMIT_NANO = 3_000_000
CREDIT = ChannelCredit(LIMIT_NANO)

seldom = st.sampled_from([False, False, False, False, True])


@dataclass
class Stream:
    """A request that is being answered: what the seller has sent, what has come, whether the line still holds."""

    promise: Promise
    sent_tokens: int = 0
    came_tokens: int = 0
    part: int = 0
    is_whole: bool = True


class Wire(RuleBasedStateMachine):
    """Each side knows a channel; records travel as messages, text by streams that may break but never reorder."""

    def __init__(self) -> None:
        super().__init__()
        self.buyer = self.seller = self.marketplace = Channel(TERMS)
        self.vouched: dict[int, Promise] = {}
        self.streams: dict[int, Stream] = {}
        self.last_seq = 0
        self.messages: list[Promise | Delivery] = []
        self.truth_nano = self.unseen_nano = 0

    @rule(most_tokens=st.integers(500, 2_000), arrives=st.booleans())
    def ask(self, most_tokens: int, arrives: bool) -> None:
        lane = free_lane(self.vouched)
        order = VoucherOrder(DIGEST, DIGEST, PRICES, cost_nano(PROMPT_TOKENS, most_tokens))
        ceilings = {n: int(promise.voucher.ceiling_nano) for n, promise in self.vouched.items()}
        assert lane is not None
        voucher = next_voucher(
            self.buyer, lane, self.last_seq, order, limit_nano=LIMIT_NANO, open_ceilings=ceilings
        )
        if voucher:
            self.last_seq = voucher.seq
            promise = vouch(lane, voucher.seq, int(voucher.base_nano), int(voucher.ceiling_nano))
            self.vouched[lane] = promise
            self.buyer = promised(self.buyer, promise)
            self.messages.append(promise)
            if arrives:
                self._seller_hears(promise)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), stays=st.booleans(), is_lost=seldom)
    def pass_on(self, data: st.DataObject, stays: bool, is_lost: bool) -> None:
        at = data.draw(st.integers(0, len(self.messages) - 1))
        message = self.messages[at] if stays else self.messages.pop(at)
        if is_lost:
            return
        if isinstance(message, Promise):
            self._seller_hears(message)
        else:
            self.marketplace = delivered(self.marketplace, message, BUYER)

    def _seller_hears(self, promise: Promise) -> None:
        ceilings = {n: int(stream.promise.voucher.ceiling_nano) for n, stream in self.streams.items()}
        asked = PricedRequest(DIGEST, int(promise.voucher.ceiling_nano - promise.voucher.base_nano))
        offered = {DIGEST: PRICES}
        if not refusal(self.seller, promise, asked, offered, CREDIT, open_ceilings=ceilings, now_ms=NOW_MS):
            self.streams[promise.voucher.lane] = Stream(promise)
            self.seller = promised(self.seller, promise)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), tokens=st.integers(1, 700), breaks=seldom)
    def stream(self, data: st.DataObject, tokens: int, breaks: bool) -> None:
        """The seller sends no more than was promised, and stops where it sees that the line is broken."""
        lane = data.draw(st.sampled_from(sorted(self.streams)))
        stream = self.streams[lane]
        if not stream.is_whole:
            return
        voucher = stream.promise.voucher
        sent_tokens = stream.sent_tokens + tokens
        if voucher.base_nano + cost_nano(PROMPT_TOKENS, sent_tokens) > voucher.ceiling_nano:
            return
        stream.sent_tokens, stream.part = sent_tokens, stream.part + 1
        # A buyer that gave up on the request takes nothing more.
        stream.is_whole = not breaks and self.vouched.get(lane) == stream.promise
        if stream.is_whole:
            stream.came_tokens = sent_tokens
        self._seller_signs(stream, is_final=False)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.streams))))

    def _end(self, lane: int) -> None:
        """Both see the end of the stream, each for itself, and sign what it knows."""
        stream = self.streams.pop(lane)
        self._seller_signs(stream, is_final=True)
        if self.vouched.get(lane) == stream.promise:
            self._buyer_signs(stream.promise, stream.came_tokens)
        came_nano, sent_nano = (cost_nano(PROMPT_TOKENS, n) for n in (stream.came_tokens, stream.sent_tokens))
        self.unseen_nano += sent_nano - came_nano

    @precondition(lambda self: self.vouched)
    @rule(data=st.data(), really=seldom)
    def give_up(self, data: st.DataObject, really: bool) -> None:
        """The buyer waits no longer for an answer that has not begun; its voucher may still arrive."""
        lane = data.draw(st.sampled_from(sorted(self.vouched)))
        stream = self.streams.get(lane)
        if really and (stream is None or not stream.came_tokens):
            self._buyer_signs(self.vouched[lane], 0)

    @rule()
    def tell_the_marketplace(self) -> None:
        self.marketplace = merge(self.marketplace, self.seller)

    def _seller_signs(self, stream: Stream, *, is_final: bool) -> None:
        part = stream.part + is_final
        receipt = receive("seller", stream.promise, PROMPT_TOKENS, stream.sent_tokens, part, is_final=is_final)
        self.seller = delivered(self.seller, receipt, SELLER)

    def _buyer_signs(self, promise: Promise, came_tokens: int) -> None:
        receipt = receive("buyer", promise, PROMPT_TOKENS, came_tokens, 0, is_final=True)
        self.buyer = delivered(self.buyer, receipt, BUYER)
        self.messages.append(receipt)
        self.truth_nano += cost_nano(PROMPT_TOKENS, came_tokens)
        del self.vouched[promise.voucher.lane]

    @invariant()
    def no_side_is_beyond_the_limit(self) -> None:
        for channel, open_promises in (
            (self.buyer, self.vouched),
            (self.seller, {n: stream.promise for n, stream in self.streams.items()}),
        ):
            ceilings = {n: int(promise.voucher.ceiling_nano) for n, promise in open_promises.items()}
            assert reserved_nano(channel, ceilings) <= LIMIT_NANO
        due = settle(self.marketplace, LIMIT_NANO)
        assert due.amount_nano + due.disputed_nano <= LIMIT_NANO

    @invariant()
    def what_the_buyer_confirms_is_what_came(self) -> None:
        assert settle(self.buyer).confirmed_nano == self.truth_nano

    def teardown(self) -> None:
        """When all have told all, the charge is what came, to the nano, however much was lost on the way."""
        for lane in list(self.streams):
            self._end(lane)
        for lane in list(self.vouched):
            self._buyer_signs(self.vouched[lane], 0)
        known = merge(merge(self.buyer, self.seller), self.marketplace)
        due = settle(known, LIMIT_NANO)
        assert due.amount_nano == due.confirmed_nano == self.truth_nano
        assert due.disputed_nano <= self.unseen_nano
        assert settle(merge(known, self.buyer), LIMIT_NANO) == due


Wire.TestCase.settings = settings(max_examples=examples(20, 60), stateful_step_count=40, deadline=None)
TestWire = Wire.TestCase
