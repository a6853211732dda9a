"""Define what requests have reserved and what they cost: the nouns that the rules use."""

from dataclasses import dataclass
from typing import NamedTuple

from accounting import chart
from accounting.money import checked_nano


class Payer(NamedTuple):
    """The credits that pay for a request: a user's own, and those of a pool that the user may draw from.

    If `takes_grants`, promotional credits pay first. They cannot pay sellers. `is_own_use` tells that an operator
    asks, within a spending limit. What credits do not cover is then this gateway's expense.
    """

    user_id: str
    pool_id: str = ""
    takes_grants: bool = True
    is_own_use: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Credits reserved for one request of a user, until captured, released, or reaped after `expires_ns`.

    If `lease` names one, the credits are part of that lease, and `pending_seq` was the first of its pending
    transfers at that time. `pool_id` is the pool that the lease may have drawn from.
    """

    request_id: str
    user_id: str
    amount_nano: int
    pending_seq: int
    expires_ns: int
    lease: str = ""
    pool_id: str = ""
    takes_grants: bool = True
    is_own_use: bool = False

    @property
    def payer(self) -> Payer:
        return Payer(self.user_id, self.pool_id, self.takes_grants, self.is_own_use)

    @property
    def account(self) -> str:
        return chart.user_paid(self.user_id)


@dataclass(frozen=True, slots=True)
class CloudBill:
    """The cost of a request at a cloud provider: the caller's charge and our cost, in nano-USD.

    `price_version` names the price list of both amounts. It is kept with the event.
    """

    provider: str
    charge_nano: int
    cost_nano: int
    price_version: str = ""

    def __post_init__(self) -> None:
        checked_nano(self.charge_nano)
        checked_nano(self.cost_nano)
