"""Make the buyer's next voucher of a lane, within the channel's credit. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from market.protocol.channels.admission import reserved_nano
from market.protocol.channels.channel import Channel, Lane
from market.protocol.channels.statements import Voucher
from market.protocol.channels.terms import LANES_MAX
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount


@dataclass(frozen=True, slots=True)
class VoucherOrder:
    """A planned purchase: a sealed request, by its digest, at a listing's prices, for at most `most_nano`.

    `tokenizer` counts it, as in a voucher.
    """

    request: str
    listing: str
    prices: Prices
    most_nano: int
    tokenizer: str | None = None


def free_lane(busy: Collection[int]) -> int | None:
    """Return the first lane without a request; None if all are busy."""
    return next((n for n in range(LANES_MAX) if n not in busy), None)


def next_voucher(
    channel: Channel,
    lane: int,
    last_seq: int,
    order: VoucherOrder,
    *,
    limit_nano: int,
    open_ceilings: Mapping[int, int],
) -> Voucher | None:
    """Return the voucher to sign for an order; None if the channel's credit is too small.

    `last_seq` is the number of the last voucher ever signed on this lane, served or not; the caller must have
    stored it before sending. The base is what the buyer has signed before, so store the last request's receipt
    first.
    """
    assent = channel.lanes.get(lane, Lane()).assent
    base_nano = assent.amount_nano if assent else 0
    ceiling_nano = base_nano + order.most_nano
    if reserved_nano(channel, {**open_ceilings, lane: ceiling_nano}) > limit_nano:
        return None
    amounts = Amount(base_nano), Amount(ceiling_nano)
    request = order.request, order.listing, order.prices
    return Voucher(channel.terms.channel, lane, last_seq + 1, *request, *amounts, order.tokenizer)
