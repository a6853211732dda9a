"""Promise to pay for one request: take a lane, seal the request, sign the voucher. No I/O."""

import time
from dataclasses import dataclass

from market.buyer.channels import ChannelState, Pseudonym
from market.buyer.errors import SellerRefuses
from market.buyer.market_request import MarketRequest
from market.buyer.purchasable_listing import PurchasableListing
from market.buyer.store import BegunJob
from market.protocol.channels.job import RECEIPTS_MAX, MarketJob, pack_job
from market.protocol.channels.next_voucher import VoucherOrder
from market.protocol.channels.statements import Promise, read_voucher
from market.protocol.counting.token_count import Counting
from market.protocol.records.envelope import Saying, sign
from market.protocol.records.key_status import StandingOf
from market.protocol.sealing.agreement import Context
from market.protocol.sealing.request import SealedRequest, seal_request


@dataclass(frozen=True, slots=True)
class Vouched:
    """A job that may be sent once `begun` is on disk.

    `receipt_numbers` has the lane and number of each receipt that is sent with it.
    """

    begun: BegunJob
    promise: Promise
    sealed: SealedRequest
    packed: bytes
    receipt_numbers: tuple[tuple[int, int], ...]


def vouch(
    state: ChannelState,
    pseudonym: Pseudonym,
    offering: PurchasableListing,
    market_request: MarketRequest,
    counting: Counting,
    most_nano: int,
    request_id: str,
    standing: StandingOf,
) -> Vouched:
    """Take a lane and its next number. This reserves `most_nano` nano-USD until the channel state is updated.

    Raises:
        SellerRefuses: the channel has no room.
        MarketError: the seller's key is invalid.
    """
    lane = state.free_lane()
    if lane is None:
        raise SellerRefuses("every sub-channel of the channel is in use", "no_credit")
    seq = state.last_seqs.get(lane, 0) + 1
    body = market_request.packed(offering.listing.id)
    context = Context(state.terms.channel, lane, seq, offering.seller)
    sealed = seal_request(body, bytes.fromhex(offering.listing.sealing_key), context)
    prices, listing = offering.listing.pricing, offering.record.digest
    voucher = state.voucher(lane, VoucherOrder(sealed.digest, listing, prices, most_nano, counting.tokenizer))
    if voucher is None:
        raise SellerRefuses("the channel has too little credit", "no_credit")
    name = f"{state.terms.channel[:32]}.{lane}"
    saying = Saying("voucher", pseudonym.id, name, seq, time.time_ns() // 10**6, voucher)
    record = sign(saying, pseudonym.signer)
    promise = read_voucher(record, state.terms, standing)
    receipt_numbers, receipts = _receipts(state, lane)
    begun = BegunJob(
        state.terms.channel, lane, seq, request_id, offering.listing.id, int(voucher.ceiling_nano), record.raw
    )
    packed = pack_job(
        MarketJob(record.raw, list(state.backing), sealed.sealed, list(pseudonym.statements), receipts)
    )
    state.begin(promise)
    return Vouched(begun, promise, sealed, packed, receipt_numbers)


def _receipts(state: ChannelState, lane: int) -> tuple[tuple[tuple[int, int], ...], list[bytes]]:
    """Return receipts that the seller may lack, this lane's first: without that one it refuses the job."""
    unsent = state.unsent_receipts
    ordered = sorted(unsent, key=lambda n: (n != lane, n))[: RECEIPTS_MAX // 2]
    receipt_numbers = tuple((n, unsent[n][0]) for n in ordered)
    return receipt_numbers, [record for n in ordered for record in (unsent[n][2], unsent[n][1])]
