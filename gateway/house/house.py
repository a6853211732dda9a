"""The house as routes ask it: in a few threads of its own, with what goes wrong in the API's terms."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from gateway.errors import Conflict, NotFound, Overloaded, RequestInvalid
from gateway.house.counters import Counters
from gateway.market.bookkeeper import BookKeeper
from gateway.market.outbound import Outbound
from gateway.market.throttle import Throttle
from market.errors import (
    CountingUnavailable,
    HouseRefuses,
    IdentityInvalid,
    NotRegistered,
    RecordInvalid,
    StatementInvalid,
)
from market.house.allocations import Allocations
from market.house.disputes import Disputes
from market.house.earnings import Earnings
from market.house.forfeiture import Forfeiture
from market.house.office import Office
from market.house.sellers import SellerRegistry
from market.house.settlements import Settlements

T = TypeVar("T")

RECORDS_PER_MINUTE = 20_000
"""Of one network, whoever it is that settles: each costs a signature check."""
SETTLEMENT_RECORDS = 20
"""As so many counts a settlement without any: what is known of its channel is read again."""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Links:
    """How a house hears of others: the records that gateways tell each other, calls, tokenizers of sellers."""

    keeper: BookKeeper
    outbound: Outbound
    counters: Counters


@dataclass(frozen=True, slots=True)
class House:
    """One of a gateway that is a house: its desks, and its links with others."""

    office: Office
    sellers: SellerRegistry
    allocations: Allocations
    settlements: Settlements
    earnings: Earnings
    forfeiture: Forfeiture
    disputes: Disputes
    keeper: BookKeeper
    outbound: Outbound
    counters: Counters
    records: Throttle = field(default_factory=lambda: Throttle(RECORDS_PER_MINUTE, time.monotonic))
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))

    @classmethod
    def of(cls, office: Office, is_disputed: Callable[[str], bool], links: Links) -> "House":
        """`is_disputed` says of a user whether payments of theirs may be taken back."""
        desks = SellerRegistry(office), Allocations(office), Settlements(office)
        earnings, forfeiture = Earnings(office, is_disputed), Forfeiture(office)
        disputes = Disputes(office, links.counters.find)
        return cls(office, *desks, earnings, forfeiture, disputes, links.keeper, links.outbound, links.counters)

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Return the answer, or say what went wrong in this API's terms."""
        try:
            return await anyio.to_thread.run_sync(question, *arguments, limiter=self.threads)
        except RecordInvalid as error:
            raise RequestInvalid(str(error), param=error.field or None, code="record_invalid") from error
        except StatementInvalid as error:
            raise RequestInvalid(str(error), param=error.field or None, code="statement_invalid") from error
        except IdentityInvalid as error:
            raise RequestInvalid(str(error), code="statement_invalid") from error
        except NotRegistered as error:
            raise NotFound(str(error)) from error
        except HouseRefuses as error:
            raise Conflict(str(error), code=error.code) from error
        except CountingUnavailable as error:
            raise Overloaded("The house cannot count just now. Try again later.") from error
