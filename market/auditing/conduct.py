"""How somebody has behaved in disputes, what the next one costs, and whether they are still believed. Pure.

The house keeps it by account, for a buyer has another identity towards each seller.
"""

from dataclasses import dataclass
from typing import Literal

FEE_NANO_MIN = 1_000_000
"""A tenth of a cent: more than what most requests cost. Whoever wins has it back, with what was won."""
FEE_PARTS = 10
OPEN_MAX = 3
_LOST_FREE = 3
_LOST_PARTS = 50
_UNDECIDED_OTHERS = 3
_UNDECIDED_PARTS = 100


@dataclass(frozen=True, slots=True)
class Conduct:
    """Of the last thirty days: `requests` traded, disputes `open` now, `lost`, and `undecided`.

    `undecided_with` is with how many others those were: everybody meets a liar now and then.
    """

    requests: int = 0
    open: int = 0
    lost: int = 0
    undecided: int = 0
    undecided_with: int = 0

    @property
    def is_believed(self) -> bool:
        """False when quarrels that nothing decides are more than a hundredth, and with three others or more."""
        return self.undecided_with < _UNDECIDED_OTHERS or self.undecided * _UNDECIDED_PARTS <= self.requests


def fee_nano(disputed_nano: int) -> int:
    """What is put aside from whoever opens a dispute about so much, and kept if they lose."""
    return max(FEE_NANO_MIN, -(-disputed_nano // FEE_PARTS))


def refusal_to_hear(conduct: Conduct) -> Literal["too_many_open", "too_many_lost"] | None:
    """Why a dispute is not even heard: three at once, or three lost beyond a fiftieth of all requests."""
    if conduct.open >= OPEN_MAX:
        return "too_many_open"
    if conduct.lost >= _LOST_FREE + conduct.requests // _LOST_PARTS:
        return "too_many_lost"
    return None


def presumption(buyer: Conduct, seller: Conduct) -> Literal["buyer", "seller"] | None:
    """Who is taken to be wrong where nothing else decides; None where both are believed, or neither."""
    if buyer.is_believed == seller.is_believed:
        return None
    return "seller" if buyer.is_believed else "buyer"
