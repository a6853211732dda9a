"""Promising to pay for one request: a lane is taken, the request sealed, the voucher signed. No I/O."""

import time
from dataclasses import dataclass

from gateway.buying.channels import Pseudonym, Tie
from gateway.buying.errors import SellerRefuses
from gateway.buying.store import Begun
from gateway.buying.wanted import Asked
from gateway.buying.ware import Ware
from market.channels.job import RECEIPTS_MAX, MarketJob, pack_job
from market.channels.next_voucher import VoucherOrder
from market.channels.statements import Promise, read_voucher
from market.records.envelope import Saying, sign
from market.records.key_status import StandingOf
from market.sealing.agreement import Context
from market.sealing.request import SealedRequest, seal_request


@dataclass(frozen=True, slots=True)
class Vouched:
    """A job that may be sent once `begun` is on disk. `told` are the numbers of the receipts that go with it."""

    begun: Begun
    promise: Promise
    sealed: SealedRequest
    packed: bytes
    told: tuple[tuple[int, int], ...]


def vouch(
    tie: Tie, pseudonym: Pseudonym, ware: Ware, asked: Asked, most_nano: int, request_id: str, standing: StandingOf
) -> Vouched:
    """Take a lane and its next number; from now on `most_nano` are reserved, until the tie is told otherwise.

    Raises:
        SellerRefuses: the channel has no room, or its seller's key is none.
    """
    lane = tie.free_lane()
    if lane is None:
        raise SellerRefuses("every lane of the channel is in use", "no_credit")
    seq = tie.last_seqs.get(lane, 0) + 1
    body = asked.packed(ware.listing.id)
    context = Context(tie.terms.channel, lane, seq, ware.seller)
    sealed = seal_request(body, bytes.fromhex(ware.listing.sealing_key), context)
    voucher = tie.voucher(lane, VoucherOrder(sealed.digest, ware.record.digest, ware.listing.pricing, most_nano))
    if voucher is None:
        raise SellerRefuses("the channel's credit does not reach", "no_credit")
    name = f"{tie.terms.channel[:32]}.{lane}"
    saying = Saying("voucher", pseudonym.id, name, seq, time.time_ns() // 10**6, voucher)
    record = sign(saying, pseudonym.signer)
    promise = read_voucher(record, tie.terms, standing)
    told, receipts = _receipts(tie, lane)
    begun = Begun(tie.terms.channel, lane, seq, request_id, ware.listing.id, int(voucher.ceiling_nano), record.raw)
    packed = pack_job(
        MarketJob(record.raw, list(tie.backing), sealed.sealed, list(pseudonym.statements), receipts)
    )
    tie.begin(promise)
    return Vouched(begun, promise, sealed, packed, told)


def _receipts(tie: Tie, lane: int) -> tuple[tuple[tuple[int, int], ...], list[bytes]]:
    """What the seller may not have yet, this lane's before the others': without it, it would not serve."""
    ordered = sorted(tie.untold, key=lambda n: (n != lane, n))[: RECEIPTS_MAX // 2]
    told = tuple((n, tie.untold[n][0]) for n in ordered)
    return told, [record for n in ordered for record in (tie.untold[n][2], tie.untold[n][1])]
