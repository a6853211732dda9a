"""What requests have put aside, and what they come to: the nouns that the rules work with."""

from dataclasses import dataclass
from typing import NamedTuple

from accounting import chart
from accounting.money import checked_nano


class Payer(NamedTuple):
    """Whose credits pay for a request: a user's own, and those of a pool that the user may draw from.

    `takes_lots`: credits that were given for a time pay first. They buy nothing from sellers.
    `is_own_use`: an operator asks, within a spending limit. What credits do not cover is this gateway's expense.
    """

    user_id: str
    pool_id: str = ""
    takes_lots: bool = True
    is_own_use: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Credits put aside for one request of a user, until captured, released, or reaped after `expires_ns`.

    Where `lease` names one, the credits are a part of that lease, and `pending_seq` was the first of its pending
    transfers at that time. `pool_id` is the pool that the lease may have drawn from.
    """

    request_id: str
    user_id: str
    amount_nano: int
    pending_seq: int
    expires_ns: int
    lease: str = ""
    pool_id: str = ""
    takes_lots: bool = True
    is_own_use: bool = False

    @property
    def payer(self) -> Payer:
        return Payer(self.user_id, self.pool_id, self.takes_lots, self.is_own_use)

    @property
    def account(self) -> str:
        return chart.user_paid(self.user_id)


@dataclass(frozen=True, slots=True)
class CloudBill:
    """What a request at a cloud provider comes to: the caller's charge and our cost, in nano-USD.

    `price_version` names the price list that both were reckoned with; it is kept with the event.
    """

    provider: str
    charge_nano: int
    cost_nano: int
    price_version: str = ""

    def __post_init__(self) -> None:
        checked_nano(self.charge_nano)
        checked_nano(self.cost_nano)
