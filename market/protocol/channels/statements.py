"""Define what buyer and seller sign about one request: a voucher before it, receipts during and after the answer.

Amounts are those of a lane since it began, not of one request. The newest statement replaces all before it, so
losing older ones does no harm. Only vouchers name amounts. A receipt has only token counts: its amount follows
from the voucher's prices, cannot contradict them, and never exceeds the ceiling.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from accounting.errors import AmountInvalid
from accounting.money import MAX_TOKENS
from market.errors import StatementInvalid
from market.protocol.channels.terms import LANES_MAX, ChannelTerms
from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Count, Hex32, Record
from market.protocol.records.key_status import StandingOf, check_speaker

LaneNumber = Annotated[int, Meta(ge=0, lt=LANES_MAX)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]

STATEMENT_BYTES_MAX = 2048
"""Twice the size of vouchers and receipts. Anything else that is signed with them costs many parties space."""
TOLERANCE_TOKENS = 32
TOLERANCE_PARTS = 100
"""If two counts of one answer differ by less than 32 tokens or a hundredth, the buyer's count applies."""


class Voucher(Struct, frozen=True):
    """The buyer pays for request `seq` of a lane: `base_nano` for all before it, at most `ceiling_nano` with it.

    `request` is the digest of the sealed request, `listing` the digest of the listing with these prices.
    `tokenizer` is the SHA-256 of the tokenizer that counts it: the listing's, or None for four bytes a token.
    """

    channel: Hex32
    lane: LaneNumber
    seq: Count
    request: Hex32
    listing: Hex32
    prices: Prices
    base_nano: Amount
    ceiling_nano: Amount
    tokenizer: Hex32 | None = None


class Receipt(Struct, frozen=True):
    """The amount delivered for a voucher, by the count of the signer: seller or buyer.

    `part` counts the receipts of one request, `transcript` is the hash of the text, and `ledger_checkpoint` the newest
    block of the marketplace's ledger that the signer has seen.
    """

    channel: Hex32
    lane: LaneNumber
    seq: Count
    part: Count
    voucher: Hex32
    prompt_tokens: Tokens
    cached_tokens: Tokens
    completion_tokens: Tokens
    transcript: Hex32
    is_final: bool
    ledger_checkpoint: Hex32 | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """A voucher checked against the channel's terms. It also admits what was delivered before it."""

    voucher: Voucher
    record: Record

    @property
    def digest(self) -> str:
        return self.record.digest

    @property
    def amount_nano(self) -> int:
        return int(self.voucher.base_nano)

    @property
    def settled_seq(self) -> int:
        """The last request that it treats as done."""
        return self.voucher.seq - 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """A receipt together with its voucher."""

    promise: Promise
    receipt: Receipt
    record: Record

    @property
    def digest(self) -> str:
        return self.record.digest

    @property
    def request_nano(self) -> int:
        """The cost of this request alone. If nothing was delivered, the prompt is free too."""
        tokens = self.receipt.prompt_tokens, self.receipt.cached_tokens, self.receipt.completion_tokens
        return cost_nano(self.promise.voucher.prices, *tokens)

    @property
    def amount_nano(self) -> int:
        """The sum of the lane with this request."""
        voucher = self.promise.voucher
        return min(voucher.base_nano + self.request_nano, int(voucher.ceiling_nano))

    @property
    def settled_seq(self) -> int:
        return self.receipt.seq if self.receipt.is_final else self.receipt.seq - 1

    @property
    def tolerance_nano(self) -> int:
        """The largest difference by which the buyer's count may be lower without a decision by the text."""
        few_nano = TOLERANCE_TOKENS * int(self.promise.voucher.prices.completion) // 10**6
        return max(self.request_nano // TOLERANCE_PARTS, few_nano)


def read_voucher(record: Record, terms: ChannelTerms, standing: StandingOf) -> Promise:
    """Check a voucher against its channel.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: it is another channel's, not the buyer's, or contradicts itself.
    """
    _check_size(record)
    voucher = record.read("voucher", Voucher)
    check_speaker(record, terms.buyer, standing)
    if voucher.channel != terms.channel:
        raise StatementInvalid("the voucher is for another channel")
    if voucher.seq < 1 or voucher.ceiling_nano < voucher.base_nano:
        raise StatementInvalid("a voucher must count from 1, with a ceiling not below its base")
    return Promise(voucher, record)


def read_receipt(record: Record, promise: Promise, terms: ChannelTerms, standing: StandingOf) -> Delivery:
    """Check a receipt of either side against its voucher.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: it is for another voucher, by a third party, or its tokens have no price.
    """
    _check_size(record)
    receipt, voucher = record.read("receipt", Receipt), promise.voucher
    check_speaker(record, terms.buyer if record.issuer == terms.buyer else terms.seller, standing)
    named = (receipt.channel, receipt.lane, receipt.seq, receipt.voucher)
    if named != (voucher.channel, voucher.lane, voucher.seq, promise.digest):
        raise StatementInvalid("the receipt is not for this voucher")
    try:
        cost_nano(voucher.prices, receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens)
    except AmountInvalid as error:
        raise StatementInvalid(f"the receipt's tokens have no price: {error}") from None
    return Delivery(promise, receipt, record)


def _check_size(record: Record) -> None:
    if len(record.raw) > STATEMENT_BYTES_MAX:
        raise StatementInvalid(f"a {record.kind} may have at most {STATEMENT_BYTES_MAX} bytes")
