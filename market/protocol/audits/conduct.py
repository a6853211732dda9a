"""Judge how an account has behaved in disputes: what the next one costs, and whether it is believed. Pure.

The marketplace records this by account, because a buyer has another identity towards each seller.
"""

from dataclasses import dataclass
from typing import Literal

FEE_NANO_MIN = 1_000_000
"""A tenth of a cent: more than most requests cost. The winner gets it back, with what was won."""
FEE_PARTS = 10
OPEN_MAX = 3
_LOST_FREE = 3
_LOST_PARTS = 50
_UNDECIDED_OTHERS = 3
_UNDECIDED_PARTS = 100


@dataclass(frozen=True, slots=True)
class Conduct:
    """The last thirty days: `requests` traded, disputes `open` now, `lost`, and `undecided`.

    `undecided_with` counts the other parties of the undecided ones: anyone meets a liar now and then.
    """

    requests: int = 0
    open: int = 0
    lost: int = 0
    undecided: int = 0
    undecided_with: int = 0

    @property
    def is_believed(self) -> bool:
        """False if undecided disputes exceed one in a hundred requests and involve three other parties or more."""
        return self.undecided_with < _UNDECIDED_OTHERS or self.undecided * _UNDECIDED_PARTS <= self.requests


def fee_nano(disputed_nano: int) -> int:
    """Return what is held from the party that opens a dispute about this amount, and kept if it loses."""
    return max(FEE_NANO_MIN, -(-disputed_nano // FEE_PARTS))


def refusal_to_hear(conduct: Conduct) -> Literal["too_many_open", "too_many_lost"] | None:
    """Return why a dispute is not accepted: three are open, or the lost ones exceed three plus 2 % of all
    requests.
    """
    if conduct.open >= OPEN_MAX:
        return "too_many_open"
    if conduct.lost >= _LOST_FREE + conduct.requests // _LOST_PARTS:
        return "too_many_lost"
    return None


def presumption(buyer: Conduct, seller: Conduct) -> Literal["buyer", "seller"] | None:
    """Return who is presumed wrong if nothing else decides; None if both or neither are believed."""
    if buyer.is_believed == seller.is_believed:
        return None
    return "seller" if buyer.is_believed else "buyer"
