"""The channels to one seller: which has room for a request, on which lane, with which sequence number.

A number is used once, whatever becomes of its request. A request's maximum cost is reserved before its voucher is
signed, until our receipt is. If this process dies in between, it stays reserved for as long as the channel lives.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from accounting.proofs.signing_key import Signer
from market.protocol.channels.admission import reserved_nano
from market.protocol.channels.channel import Channel, delivered, merge, promised
from market.protocol.channels.next_voucher import VoucherOrder, free_lane, next_voucher
from market.protocol.channels.statements import Delivery, Promise, Voucher, read_receipt, read_voucher
from market.protocol.channels.terms import SERVE_MARGIN_MS, ChannelTerms
from market.protocol.records.envelope import open_record
from market.protocol.records.key_status import StandingOf

SHUNNED_S = 120.0
ENDS_WITHIN_MS = 10 * 60_000
"""Tolerated clock difference: credit that ends later than this has not ended."""
USED_UP_PARTS = 4
"""Credit is near its limit when at most one part in this many is left."""


@dataclass
class ChannelState:
    """A channel as we know it, with the credit behind it. `backing` is the records that a seller wants to see.

    By lane: `last_seqs` is the last voucher's number, `open_ceilings` what running jobs may cost in nano-USD.
    `shunned_until_s`, on the monotonic clock, marks lanes on which the seller waits for something of its own.
    """

    terms: ChannelTerms
    limit_nano: int
    expires_ms: int
    backing: tuple[bytes, ...]
    channel: Channel
    is_retired: bool = False
    """True if the seller accepts nothing more on it, whatever we believe to be left."""
    last_seqs: dict[int, int] = field(default_factory=dict)
    open_ceilings: dict[int, int] = field(default_factory=dict)
    shunned_until_s: dict[int, float] = field(default_factory=dict)
    unsent_receipts: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    """The newest receipt that the seller may lack, by lane: its number, the receipt and its voucher."""

    @property
    def room_nano(self) -> int:
        """Return how much may still be promised, in nano-USD."""
        return self.limit_nano - reserved_nano(self.channel, self.open_ceilings)

    def serves(self, now_ms: int) -> bool:
        """Return whether a seller would still begin a job on it, with a minute to spare."""
        return not self.is_retired and now_ms + 2 * SERVE_MARGIN_MS < self.expires_ms

    def may_be_used_up(self, code: str, lane: int, now_ms: int) -> bool:
        """Return whether a seller's claim is plausible: the credit has `ended`, or is near its `limit`.

        The `limit` check leaves out this lane's job. A seller that made such claims about untouched credit could
        make us reserve one allocation after another.
        """
        if code == "ended":
            return self.expires_ms - now_ms <= ENDS_WITHIN_MS
        others = {n: ceiling for n, ceiling in self.open_ceilings.items() if n != lane}
        return (self.limit_nano - reserved_nano(self.channel, others)) * USED_UP_PARTS <= self.limit_nano

    def shun(self, lane: int, code: str) -> None:
        """Avoid a lane that the seller objects to: for a while, or forever if its number was used already."""
        self.shunned_until_s[lane] = inf if code == "spent" else time.monotonic() + SHUNNED_S

    def free_lane(self) -> int | None:
        now_s = time.monotonic()
        self.shunned_until_s = {n: until_s for n, until_s in self.shunned_until_s.items() if until_s > now_s}
        return free_lane(self.open_ceilings.keys() | self.shunned_until_s.keys())

    def voucher(self, lane: int, order: VoucherOrder) -> Voucher | None:
        """Return a lane's next voucher, or None if the credit is too low."""
        others = {n: ceiling for n, ceiling in self.open_ceilings.items() if n != lane}
        seq = self.last_seqs.get(lane, 0)
        return next_voucher(self.channel, lane, seq, order, limit_nano=self.limit_nano, open_ceilings=others)

    def begin(self, promise: Promise) -> None:
        voucher = promise.voucher
        self.last_seqs[voucher.lane] = voucher.seq
        self.open_ceilings[voucher.lane] = int(voucher.ceiling_nano)
        self.channel = promised(self.channel, promise)

    def end(self, delivery: Delivery) -> None:
        """Note that we signed for a delivery; the lane's next job carries the receipt at the latest."""
        receipt = delivery.receipt
        self.channel = delivered(self.channel, delivery, self.terms.buyer)
        self.open_ceilings.pop(receipt.lane, None)
        self.unsent_receipts[receipt.lane] = (receipt.seq, delivery.record.raw, delivery.promise.record.raw)

    def note_receipts_taken(self, numbers: Sequence[tuple[int, int]]) -> None:
        """Note that the seller has these receipts, given by lane and number."""
        for lane, seq in numbers:
            if lane in self.unsent_receipts and self.unsent_receipts[lane][0] <= seq:
                del self.unsent_receipts[lane]


def pack_records(records: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode(list(records))


def restored(row: Any, jobs: Sequence[Any], standing: StandingOf) -> ChannelState:
    """Return a channel as stored; jobs without a receipt stay reserved.

    Raises:
        MarketError: the stored records are damaged.
    """
    terms = ChannelTerms(row.buyer, row.seller, row.backing)
    state = ChannelState(
        terms,
        row.limit_nano,
        row.expires_ms,
        tuple(msgspec.msgpack.decode(row.records, type=list[bytes])),
        Channel(terms),
    )
    for job in jobs:
        promise = read_voucher(open_record(job.voucher), terms, standing)
        state.channel = merge(state.channel, promised(Channel(terms), promise))
        state.last_seqs[job.lane] = max(job.seq, state.last_seqs.get(job.lane, 0))
        if job.receipt is None:
            state.open_ceilings[job.lane] = max(job.ceiling_nano, state.open_ceilings.get(job.lane, 0))
            continue
        delivery = read_receipt(open_record(job.receipt), promise, terms, standing)
        state.channel = delivered(state.channel, delivery, terms.buyer)
        if not job.is_reported:
            state.unsent_receipts[job.lane] = (job.seq, job.receipt, job.voucher)
    return state


@dataclass(frozen=True, slots=True)
class Pseudonym:
    """Our identity towards one seller. `statements` are what that identity has published about its keys."""

    id: str
    signer: Signer
    statements: tuple[bytes, ...] = ()
