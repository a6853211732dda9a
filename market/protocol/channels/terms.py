"""Define who trades with whom, and on what credit: an allocation of the marketplace, or a credit line of partners."""

import hashlib
from dataclasses import dataclass

from msgspec import Struct

from market.protocol.records.amounts import Amount
from market.protocol.records.canonical import canonical
from market.protocol.records.envelope import Count, Hex32, Name, Record
from market.protocol.records.key_status import StandingOf, check_speaker

LANES_MAX = 64
"""Most concurrent requests on one channel."""
ANSWER_S_MAX = 1800
"""Longest answer in seconds. Then its seller ends it, and its buyer stops waiting."""
SERVE_MARGIN_MS = 60_000
"""A seller starts no new requests on an allocation this long before its end."""
SETTLE_GRACE_MS = 24 * 3_600_000
"""The marketplace keeps the money held this long after that: clocks may differ by hours, and settlement may come
late.
"""


class Allocation(Struct, frozen=True):
    """The marketplace's statement that it has reserved `limit_nano` of this buyer's credits for this seller.

    `hold` is the event in the marketplace's ledger that did it. It names one seller, because two sellers that cannot
    reach each other could otherwise both be paid from it.
    """

    buyer: Hex32
    seller: Hex32
    limit_nano: Amount
    hold: Name
    epoch: Count


@dataclass(frozen=True, slots=True)
class ChannelTerms:
    """The terms of a channel. `backing` is the digest of the allocation's record, or a credit line's id."""

    buyer: str
    seller: str
    backing: str

    @property
    def channel(self) -> str:
        """The channel's id. Anyone who knows the terms can compute it."""
        parties = {"backing": self.backing, "buyer": self.buyer, "seller": self.seller}
        return hashlib.sha256(canonical(parties)).hexdigest()


def read_allocation(record: Record, marketplace: str, standing: StandingOf) -> tuple[ChannelTerms, Allocation]:
    """Return the channel that an allocation of this marketplace opens, and the allocation.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: another identity issued it.
    """
    allocation = record.read("allocation", Allocation)
    check_speaker(record, marketplace, standing)
    return ChannelTerms(allocation.buyer, allocation.seller, record.digest), allocation
