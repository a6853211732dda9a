"""Our own receipts: for an answer that has ended, and for what an earlier life of ours had heard of one.

Where this process dies in the middle of a job nobody would answer what its seller says of it later. So what has
come is written down as it comes, and signed at the next start.
"""

import time
from typing import NamedTuple

import msgspec

from gateway.buying.channels import Pseudonym
from gateway.buying.store import DIED, Ended, Store
from market.channels.statements import Delivery, Promise, Receipt, read_receipt, read_voucher
from market.channels.terms import ChannelTerms
from market.counting.answer import transcript_of
from market.records.envelope import Saying, open_record, sign
from market.records.key_status import StandingOf


class Counted(NamedTuple):
    """What came of an answer, by our own count; the transcript is the hash of its texts."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    transcript: str

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)


def receipt_for(
    counted: Counted, promise: Promise, terms: ChannelTerms, pseudonym: Pseudonym, standing: StandingOf
) -> Delivery:
    """Sign for so much and no more."""
    voucher = promise.voucher
    named = voucher.channel, voucher.lane, voucher.seq
    counts = counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens
    body = Receipt(*named, 0, promise.digest, *counts, counted.transcript, is_final=True)
    name = f"{voucher.channel[:32]}.{voucher.lane}.{voucher.seq}"
    record = sign(Saying("receipt", pseudonym.id, name, 0, time.time_ns() // 10**6, body), pseudonym.signer)
    return read_receipt(record, promise, terms, standing)


def sign_left_open(store: Store, terms: ChannelTerms, pseudonym: Pseudonym, standing: StandingOf) -> None:
    """Sign for every job of a channel that was in the middle of its answer when an earlier process died.

    Raises:
        MarketError: what stands in the store is not what was written.
    """
    for job in store.left_open(terms.channel):
        promise = read_voucher(open_record(job.voucher), terms, standing)
        if job.progress:
            counted = msgspec.msgpack.decode(job.progress, type=Counted)
        else:
            counted = Counted(0, 0, 0, transcript_of(promise.voucher.request, {}))
        delivery = receipt_for(counted, promise, terms, pseudonym, standing)
        amount_nano = delivery.amount_nano - int(promise.voucher.base_nano)
        store.end(job, Ended(delivery.record.raw, None, amount_nano, DIED))
