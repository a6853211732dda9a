"""Represent what is known of a channel and its sum. `merge` is a join, and `settle` a function of what is known.

Three records of each lane are enough: the seller's newest receipt with its voucher, and the buyer's signature that
admits most. So any party may settle with any part of the records, in any order, any number of times. Later records
only raise the sum, and all parties reach the same one when all records are known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from market.errors import StatementInvalid
from market.protocol.channels.statements import Delivery, Promise
from market.protocol.channels.terms import ChannelTerms


@dataclass(frozen=True, slots=True)
class Lane:
    """`claim` is the seller's newest receipt, `assent` the buyer's signature that admits most."""

    claim: Delivery | None = None
    assent: Promise | Delivery | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """The buyer's debt in nano-USD, by certainty.

    The buyer has signed `confirmed_nano`. The seller has signed `claimed_nano` more, within the voucher, and the
    buyer has not answered: it is due when the time for an answer is over. The seller has signed `disputed_nano`
    more, and the buyer has signed less: the transcript decides.
    """

    confirmed_nano: int = 0
    claimed_nano: int = 0
    disputed_nano: int = 0

    @property
    def amount_nano(self) -> int:
        """Return the amount that is due if no party disputes anything."""
        return self.confirmed_nano + self.claimed_nano


@dataclass(frozen=True, slots=True)
class Channel:
    """All relevant facts of a channel. It is never changed, only replaced."""

    terms: ChannelTerms
    lanes: Mapping[int, Lane] = field(default_factory=dict)


def promised(channel: Channel, promise: Promise) -> Channel:
    """Return the channel with a voucher added."""
    return _knowing(channel, promise.voucher.lane, Lane(assent=promise))


def delivered(channel: Channel, delivery: Delivery, by: str) -> Channel:
    """Return the channel with a receipt and its voucher added. `by` is the signer of the receipt."""
    lane = Lane(delivery, delivery.promise) if by == channel.terms.seller else Lane(assent=delivery)
    return _knowing(channel, delivery.receipt.lane, lane)


def merge(one: Channel, other: Channel) -> Channel:
    """Return what both sides know together: commutative, associative, idempotent.

    Raises:
        StatementInvalid: they are different channels.
    """
    if one.terms != other.terms:
        raise StatementInvalid("only states of one channel can be merged")
    numbers = one.lanes.keys() | other.lanes.keys()
    lanes = {n: _join(one.lanes.get(n, Lane()), other.lanes.get(n, Lane())) for n in sorted(numbers)}
    return Channel(one.terms, lanes)


def settle(channel: Channel, limit_nano: int | None = None) -> Due:
    """Return what the channel's lanes add up to, at most the allocation's limit.

    The marketplace books what exceeds its earlier bookings. The result does not depend on a clock.
    """
    dues = [due(lane) for lane in channel.lanes.values()]
    confirmed_nano = sum(each.confirmed_nano for each in dues)
    claimed_nano = sum(each.claimed_nano for each in dues)
    disputed_nano = sum(each.disputed_nano for each in dues)
    if limit_nano is None:
        return Due(confirmed_nano, claimed_nano, disputed_nano)
    confirmed_nano = min(confirmed_nano, limit_nano)
    claimed_nano = min(claimed_nano, limit_nano - confirmed_nano)
    return Due(confirmed_nano, claimed_nano, min(disputed_nano, limit_nano - confirmed_nano - claimed_nano))


def due(lane: Lane) -> Due:
    """Return what is due on one lane."""
    confirmed_nano = lane.assent.amount_nano if lane.assent else 0
    excess_nano = max(0, lane.claim.amount_nano - confirmed_nano) if lane.claim else 0
    if lane.claim is None or not excess_nano:
        return Due(confirmed_nano)
    settled_seq = lane.assent.settled_seq if lane.assent else 0
    if lane.claim.receipt.seq > settled_seq:
        return Due(confirmed_nano, claimed_nano=excess_nano)
    if excess_nano <= lane.claim.tolerance_nano:
        return Due(confirmed_nano)
    return Due(confirmed_nano, disputed_nano=excess_nano)


def _knowing(channel: Channel, n: int, lane: Lane) -> Channel:
    known = {**channel.lanes, n: _join(channel.lanes.get(n, Lane()), lane)}
    return Channel(channel.terms, dict(sorted(known.items())))


def _join(one: Lane, other: Lane) -> Lane:
    claims = [lane.claim for lane in (one, other) if lane.claim]
    assents = [lane.assent for lane in (one, other) if lane.assent]
    return Lane(max(claims, key=_claim_order, default=None), max(assents, key=_assent_order, default=None))


def _claim_order(claim: Delivery) -> tuple[int, int, int, str, str]:
    return claim.receipt.seq, claim.receipt.part, claim.amount_nano, claim.digest, claim.promise.digest


def _assent_order(assent: Promise | Delivery) -> tuple[int, int, bool, str]:
    # Order by amount first: a buyer cannot take back a signature by signing less later. A receipt also says how a
    # # request reached its amount, while the next voucher only adds it up. So on a tie the receipt stays.
    return assent.amount_nano, assent.settled_seq, isinstance(assent, Delivery), assent.digest
