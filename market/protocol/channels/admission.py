"""Check, before a seller runs the model, whether this voucher will pay for this request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from market.protocol.channels.channel import Channel, Lane
from market.protocol.channels.statements import Delivery, Promise
from market.protocol.channels.terms import SERVE_MARGIN_MS
from market.protocol.listings.prices import Prices

Reason = Literal["spent", "busy", "unpaid", "low", "prices", "request", "limit", "ended"]

_WORDS: dict[Reason, str] = {
    "spent": "this voucher, or a newer one of its sub-channel, was already used",
    "busy": "the sub-channel's last request has no final receipt yet: use another sub-channel",
    "unpaid": "the voucher covers less than was delivered before it: sign a receipt for that first",
    "low": "the voucher's ceiling is below what this request may cost",
    "prices": "the voucher's prices are not those of a valid listing",
    "request": "the voucher is for another request",
    "limit": "this voucher would exceed the channel's credit",
    "ended": "the credit behind this channel has ended",
}


@dataclass(frozen=True, slots=True)
class ChannelCredit:
    """The credit of a channel, and its end by the marketplace's clock; None for a credit without an end."""

    limit_nano: int
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PricedRequest:
    """A request as the seller sees it: its digest, and its maximum cost by the voucher's prices."""

    request: str
    most_nano: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a voucher is not enough, by name and in words for the buyer."""

    reason: Reason

    @property
    def sentence(self) -> str:
        return _WORDS[self.reason]


def refusal(
    channel: Channel,
    promise: Promise,
    priced: PricedRequest,
    offered: Mapping[str, Prices],
    credit: ChannelCredit,
    *,
    open_ceilings: Mapping[int, int],
    now_ms: int,
) -> Refusal | None:
    """Return why the seller does not serve this request for this voucher; None if it does.

    `offered` has the prices of the valid listings, by digest. `open_ceilings` has the ceilings of the vouchers in
    progress on this channel, by lane.
    """
    voucher = promise.voucher
    if reason := _lane_reason(channel.lanes.get(voucher.lane, Lane()), promise, open_ceilings):
        return Refusal(reason)
    if offered.get(voucher.listing) != voucher.prices:
        return Refusal("prices")
    if voucher.request != priced.request:
        return Refusal("request")
    if voucher.ceiling_nano < voucher.base_nano + priced.most_nano:
        return Refusal("low")
    if credit.expires_ms is not None and now_ms + SERVE_MARGIN_MS >= credit.expires_ms:
        return Refusal("ended")
    ceilings = {**open_ceilings, voucher.lane: voucher.ceiling_nano}
    return Refusal("limit") if reserved_nano(channel, ceilings) > credit.limit_nano else None


def reserved_nano(channel: Channel, open_ceilings: Mapping[int, int]) -> int:
    """Return the channel's maximum: ceilings of running requests, and what was delivered on the other lanes."""
    numbers = channel.lanes.keys() | open_ceilings.keys()
    return sum(open_ceilings.get(n, _reached_nano(channel.lanes.get(n, Lane()))) for n in numbers)


def _lane_reason(lane: Lane, promise: Promise, open_ceilings: Mapping[int, int]) -> Reason | None:
    claim = lane.claim
    if claim and promise.voucher.seq <= claim.receipt.seq:
        return "spent"
    if promise.voucher.lane in open_ceilings or (claim and not claim.receipt.is_final):
        return "busy"
    # Accept a buyer's count that is slightly below the seller's, as in any settlement.
    owed_nano = claim.amount_nano - claim.tolerance_nano if claim else 0
    return "unpaid" if promise.amount_nano < owed_nano else None


def _reached_nano(lane: Lane) -> int:
    known: list[Promise | Delivery] = [each for each in (lane.claim, lane.assent) if each]
    return max((each.amount_nano for each in known), default=0)
