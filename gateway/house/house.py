"""The house as its routes use it: calls in a few threads of its own, errors in the API's terms."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from gateway.errors import Conflict, NotFound, Overloaded, RequestInvalid
from gateway.house.counters import Counters
from gateway.market.outbound import Outbound
from gateway.market.record_keeper import RecordKeeper
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
"""Records of one network, for any caller: each costs a signature check."""
SETTLEMENT_RECORDS = 20
"""A settlement counts as this many records in addition, because its channel's records are read again."""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Links:
    """A house's connections: the records gateways exchange, outbound HTTP, tokenizers of sellers."""

    keeper: RecordKeeper
    outbound: Outbound
    counters: Counters


@dataclass(frozen=True, slots=True)
class House:
    """One per gateway that is a house: its services and its connections."""

    office: Office
    sellers: SellerRegistry
    allocations: Allocations
    settlements: Settlements
    earnings: Earnings
    forfeiture: Forfeiture
    disputes: Disputes
    keeper: RecordKeeper
    outbound: Outbound
    counters: Counters
    records: Throttle = field(default_factory=lambda: Throttle(RECORDS_PER_MINUTE, time.monotonic))
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))

    @classmethod
    def of(cls, office: Office, is_disputed: Callable[[str], bool], links: Links) -> "House":
        """Return the house; `is_disputed` tells whether a user's payments may be charged back."""
        services = SellerRegistry(office), Allocations(office), Settlements(office)
        earnings, forfeiture = Earnings(office, is_disputed), Forfeiture(office)
        disputes = Disputes(office, links.counters.find)
        return cls(office, *services, earnings, forfeiture, disputes, links.keeper, links.outbound, links.counters)

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Run `question` in a thread and return its result.

        The market's errors become errors of this API. Raises RequestInvalid for invalid records and statements,
        and NotFound for unregistered ones. Raises Conflict if the marketplace refuses, and Overloaded if it cannot
        count tokens now.
        """
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
            raise Overloaded("The house cannot count now. Try again later.") from error
