"""The channels to one seller: which has room for a request, on which lane, under which number.

A number is used once, whatever becomes of its request. What a request may come to is reserved from before its
voucher is signed until our receipt is; where this process died in between, for as long as the channel lives.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from accounting.proofs.signing_key import Signer
from market.channels.admission import reserved_nano
from market.channels.channel import Channel, delivered, merge, promised
from market.channels.next_voucher import VoucherOrder, free_lane, next_voucher
from market.channels.statements import Delivery, Promise, Voucher, read_receipt, read_voucher
from market.channels.terms import SERVE_MARGIN_MS, ChannelTerms
from market.records.envelope import open_record
from market.records.key_status import StandingOf

SHUNNED_S = 120.0
ENDS_WITHIN_MS = 10 * 60_000
"""Clocks may differ by so much: credit that ends later has not ended."""
USED_UP_PARTS = 4
"""Credit is near its limit when no more than one in so many parts is left."""


@dataclass
class Tie:
    """A channel as we know it, with the credit behind it. `backing` are the records that a seller wants to see.

    `last_seqs` are the numbers of the last vouchers by lane, `open_ceilings` what runs, `shunned_until_s` by the
    monotonic clock the lanes on which the seller waits for something of its own.
    """

    terms: ChannelTerms
    limit_nano: int
    expires_ms: int
    backing: tuple[bytes, ...]
    channel: Channel
    is_retired: bool = False
    """The seller takes nothing more on it, whatever we believe to be left."""
    last_seqs: dict[int, int] = field(default_factory=dict)
    open_ceilings: dict[int, int] = field(default_factory=dict)
    shunned_until_s: dict[int, float] = field(default_factory=dict)
    untold: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    """By lane, the number of the newest receipt that the seller may not have, that receipt and its voucher."""

    @property
    def room_nano(self) -> int:
        """What may still be promised."""
        return self.limit_nano - reserved_nano(self.channel, self.open_ceilings)

    def serves(self, now_ms: int) -> bool:
        """Whether a seller would begin anything on it, with a minute to spare."""
        return not self.is_retired and now_ms + 2 * SERVE_MARGIN_MS < self.expires_ms

    def may_be_used_up(self, code: str, lane: int, now_ms: int) -> bool:
        """Whether a seller may be right: the credit has `ended`, or is near its `limit` without this lane's job.

        Whoever says so of credit that is hardly touched would have us put aside one after the other.
        """
        if code == "ended":
            return self.expires_ms - now_ms <= ENDS_WITHIN_MS
        others = {n: ceiling for n, ceiling in self.open_ceilings.items() if n != lane}
        return (self.limit_nano - reserved_nano(self.channel, others)) * USED_UP_PARTS <= self.limit_nano

    def shun(self, lane: int, code: str) -> None:
        """The seller objects to what comes on this lane: for a while, or for good where its number is used up."""
        self.shunned_until_s[lane] = inf if code == "spent" else time.monotonic() + SHUNNED_S

    def free_lane(self) -> int | None:
        now_s = time.monotonic()
        self.shunned_until_s = {n: until_s for n, until_s in self.shunned_until_s.items() if until_s > now_s}
        return free_lane(self.open_ceilings.keys() | self.shunned_until_s.keys())

    def voucher(self, lane: int, order: VoucherOrder) -> Voucher | None:
        """The next one of a lane; None where the credit does not reach."""
        others = {n: ceiling for n, ceiling in self.open_ceilings.items() if n != lane}
        seq = self.last_seqs.get(lane, 0)
        return next_voucher(self.channel, lane, seq, order, limit_nano=self.limit_nano, open_ceilings=others)

    def begin(self, promise: Promise) -> None:
        voucher = promise.voucher
        self.last_seqs[voucher.lane] = voucher.seq
        self.open_ceilings[voucher.lane] = int(voucher.ceiling_nano)
        self.channel = promised(self.channel, promise)

    def end(self, delivery: Delivery) -> None:
        """We have signed what was delivered; the seller is told with the lane's next job at the latest."""
        receipt = delivery.receipt
        self.channel = delivered(self.channel, delivery, self.terms.buyer)
        self.open_ceilings.pop(receipt.lane, None)
        self.untold[receipt.lane] = (receipt.seq, delivery.record.raw, delivery.promise.record.raw)

    def told(self, numbers: Sequence[tuple[int, int]]) -> None:
        """The seller has these receipts, by lane and number."""
        for lane, seq in numbers:
            if lane in self.untold and self.untold[lane][0] <= seq:
                del self.untold[lane]


def pack_records(records: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode(list(records))


def restored(row: Any, jobs: Sequence[Any], standing: StandingOf) -> Tie:
    """A channel as it stands in the store, with what was never finished still reserved.

    Raises:
        MarketError: what stands there is not what was written.
    """
    terms = ChannelTerms(row.buyer, row.seller, row.backing)
    tie = Tie(
        terms,
        row.limit_nano,
        row.expires_ms,
        tuple(msgspec.msgpack.decode(row.records, type=list[bytes])),
        Channel(terms),
    )
    for job in jobs:
        promise = read_voucher(open_record(job.voucher), terms, standing)
        tie.channel = merge(tie.channel, promised(Channel(terms), promise))
        tie.last_seqs[job.lane] = max(job.seq, tie.last_seqs.get(job.lane, 0))
        if job.receipt is None:
            tie.open_ceilings[job.lane] = max(job.ceiling_nano, tie.open_ceilings.get(job.lane, 0))
            continue
        delivery = read_receipt(open_record(job.receipt), promise, terms, standing)
        tie.channel = delivered(tie.channel, delivery, terms.buyer)
        if not job.is_told:
            tie.untold[job.lane] = (job.seq, job.receipt, job.voucher)
    return tie


@dataclass(frozen=True, slots=True)
class Pseudonym:
    """Who we are to one seller. `statements` are what that identity has said about its keys."""

    id: str
    signer: Signer
    statements: tuple[bytes, ...] = ()
