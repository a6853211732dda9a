"""What others say of a seller, weighed so that nobody gains by buying from themselves. Pure.

Each buyer's outcomes count as those of a few at most. How much of a few is by how much of its trade the buyer has
with sellers of other owners: a ring that buys from itself has none, and to have some it must pay strangers for as
much as it pretends.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from market.matching.track import Tally

BUYER_OUTCOMES_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Dealing:
    """All that one buyer had with one seller lately, by who is behind them as far as the house knows.

    `paid_nano` is what was booked for it: nothing else shows that there was any trade.
    """

    buyer_owner: str
    seller_owner: str
    paid_nano: int
    good: float = 0.0
    bad: float = 0.0


def reputation(seller_owner: str, dealings: Iterable[Dealing], now_s: float) -> Tally:
    """What all that is known comes to: outcomes, each buyer's weighed. A seller's own purchases are not."""
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
    """What one outcome of a buyer counts: all of them together 5 at most, nothing without trade elsewhere."""
    here_nano = sum(each.paid_nano for each in own)
    outcomes = sum(each.good + each.bad for each in own)
    if not here_nano or not outcomes:
        return 0.0
    elsewhere = (spent_nano - here_nano) / spent_nano
    return elsewhere * min(1.0, BUYER_OUTCOMES_MAX / outcomes)
