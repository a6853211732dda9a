"""Our own receipts: for answers that ended, and for answers that an earlier process left unfinished.

If this process dies during a job, nothing would contradict the seller's later claims about it. So progress is
written down as it comes, and signed at the next start.
"""

from typing import NamedTuple

import msgspec

from market.buyer.channels import Pseudonym
from market.buyer.store import DIED, BuyingStore, EndedJob
from market.protocol.channels.statements import Delivery, Promise, Receipt, read_receipt, read_voucher
from market.protocol.channels.terms import ChannelTerms
from market.protocol.counting.answer import transcript_of
from market.protocol.records.envelope import Saying, open_record, sign
from market.protocol.records.key_status import StandingOf
from runtime.times import now_ms


class Counted(NamedTuple):
    """The figures of an answer by our own count; the transcript is the hash of its texts."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    transcript: str

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)


def receipt_for(
    counted: Counted, promise: Promise, terms: ChannelTerms, pseudonym: Pseudonym, standing: StandingOf
) -> Delivery:
    """Sign a receipt for exactly what was counted."""
    voucher = promise.voucher
    named = voucher.channel, voucher.lane, voucher.seq
    counts = counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens
    body = Receipt(*named, 0, promise.digest, *counts, counted.transcript, is_final=True)
    name = f"{voucher.channel[:32]}.{voucher.lane}.{voucher.seq}"
    record = sign(Saying("receipt", pseudonym.id, name, 0, now_ms(), body), pseudonym.signer)
    return read_receipt(record, promise, terms, standing)


def sign_left_open(store: BuyingStore, terms: ChannelTerms, pseudonym: Pseudonym, standing: StandingOf) -> None:
    """Sign for every job of a channel that an earlier process left unfinished.

    Raises:
        MarketError: the stored records are damaged.
    """
    for job in store.left_open(terms.channel):
        promise = read_voucher(open_record(job.voucher), terms, standing)
        if job.progress:
            counted = msgspec.msgpack.decode(job.progress, type=Counted)
        else:
            counted = Counted(0, 0, 0, transcript_of(promise.voucher.request, {}))
        delivery = receipt_for(counted, promise, terms, pseudonym, standing)
        amount_nano = delivery.amount_nano - int(promise.voucher.base_nano)
        store.end(job, EndedJob(delivery.record.raw, None, amount_nano, DIED))
