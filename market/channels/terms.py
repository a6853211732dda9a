"""Who trades with whom, and on what credit: an allocation of the house, or a credit line between friends."""

import hashlib
from dataclasses import dataclass

from msgspec import Struct

from market.records.amounts import Amount
from market.records.canonical import canonical
from market.records.envelope import Count, Hex32, Name, Record
from market.records.standing import StandingOf, check_speaker

LANES_MAX = 64
"""As many requests at once may be on one channel."""
ANSWER_S_MAX = 1800
"""An answer takes so long at most: then its seller ends it, and its buyer hears no more of it."""
SERVE_MARGIN_MS = 60_000
"""So long before an allocation ends a seller begins nothing new on it."""
SETTLE_GRACE_MS = 24 * 3_600_000
"""So long after it the house keeps the money held: clocks may be hours apart, and settlement may come late."""


class Allocation(Struct, frozen=True):
    """The house's word that it has put `limit_nano` of this buyer's credits aside for this seller.

    `hold` is the event in the house's books that did it. It names one seller: two who cannot reach each other
    could both be paid from it otherwise.
    """

    buyer: Hex32
    seller: Hex32
    limit_nano: Amount
    hold: Name
    epoch: Count


@dataclass(frozen=True, slots=True)
class Terms:
    """What a channel is. `backing` is the digest of the allocation's record, or a credit line's id."""

    buyer: str
    seller: str
    backing: str

    @property
    def channel(self) -> str:
        """The channel's id: whoever knows the terms can work it out."""
        parties = {"backing": self.backing, "buyer": self.buyer, "seller": self.seller}
        return hashlib.sha256(canonical(parties)).hexdigest()


def read_allocation(record: Record, house: str, standing: StandingOf) -> tuple[Terms, Allocation]:
    """The channel that an allocation of this house opens, and the allocation.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: somebody else has issued it.
    """
    allocation = record.read("allocation", Allocation)
    check_speaker(record, house, standing)
    return Terms(allocation.buyer, allocation.seller, record.digest), allocation
