"""Weigh what others say of a seller, so that no seller gains by buying from itself. Pure.

Each buyer's outcomes count at most as a few. The weight is the share of its trade with sellers of other owners. A
group that buys from itself has no such trade, and would have to pay third parties as much as it pretends.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from market.protocol.matching.track import Tally

BUYER_OUTCOMES_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Dealing:
    """One buyer's recent trade with one seller, by their owners as far as the marketplace knows them.

    `paid_nano` was booked for it: nothing else shows that there was any trade.
    """

    buyer_owner: str
    seller_owner: str
    paid_nano: int
    good: float = 0.0
    bad: float = 0.0


def reputation(seller_owner: str, dealings: Iterable[Dealing], now_s: float) -> Tally:
    """Return the weighted sum of all outcomes, except those of a seller's own purchases."""
    spent: dict[str, int] = defaultdict(int)
    there: dict[str, list[Dealing]] = defaultdict(list)
    for each in dealings:
        spent[each.buyer_owner] += each.paid_nano
        if each.seller_owner == seller_owner != each.buyer_owner:
            there[each.buyer_owner].append(each)
    good = bad = 0.0
    for buyer, own in there.items():
        weight = _weight(own, spent[buyer])
        good += weight * sum(each.good for each in own)
        bad += weight * sum(each.bad for each in own)
    return Tally(good, bad, now_s)


def _weight(own: list[Dealing], spent_nano: int) -> float:
    """Return the weight of one outcome of a buyer: all together count 5 at most, nothing without other trade."""
    here_nano = sum(each.paid_nano for each in own)
    outcomes = sum(each.good + each.bad for each in own)
    if not here_nano or not outcomes:
        return 0.0
    elsewhere = (spent_nano - here_nano) / spent_nano
    return elsewhere * min(1.0, BUYER_OUTCOMES_MAX / outcomes)
