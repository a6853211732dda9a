"""The marketplace as its routes use it: calls in a few threads of its own, errors in the API's terms."""

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from accounting.metering.tokenizers import Pinned, Tokenizers
from market.errors import (
    IdentityInvalid,
    MarketplaceRefuses,
    NotRegistered,
    RecordInvalid,
    StatementInvalid,
)
from market.marketplace.allocations import Allocations
from market.marketplace.context import MarketplaceContext
from market.marketplace.disputes import Disputes
from market.marketplace.earnings import Earnings
from market.marketplace.forfeiture import Forfeiture
from market.marketplace.sellers import SellerRegistry
from market.marketplace.settlements import Settlements
from market.network.outbound import Outbound
from market.network.record_keeper import RecordKeeper
from market.network.throttle import Throttle
from runtime.errors import Conflict, NotFound, RequestInvalid

T = TypeVar("T")

RECORDS_PER_MINUTE = 20_000
"""Records of one network, for any caller: each costs a signature check."""
SETTLEMENT_RECORDS = 20
"""A settlement counts as this many records in addition, because its channel's records are read again."""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Links:
    """A marketplace's connections: the records gateways exchange, outbound HTTP, the admin's tokenizers by SHA-256."""

    keeper: RecordKeeper
    outbound: Outbound
    tokenizers: Mapping[str, Pinned]


@dataclass(frozen=True, slots=True)
class Marketplace:
    """One per gateway that is a marketplace: its services, its connections, and the tokenizers that it counts by."""

    context: MarketplaceContext
    sellers: SellerRegistry
    allocations: Allocations
    settlements: Settlements
    earnings: Earnings
    forfeiture: Forfeiture
    disputes: Disputes
    keeper: RecordKeeper
    outbound: Outbound
    tokenizers: Set[str]
    records: Throttle = field(default_factory=lambda: Throttle(RECORDS_PER_MINUTE, time.monotonic))
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))

    @classmethod
    def of(cls, context: MarketplaceContext, is_disputed: Callable[[str], bool], links: Links) -> "Marketplace":
        """Return the marketplace; `is_disputed` tells whether a user's payments may be charged back."""
        services = SellerRegistry(context), Allocations(context), Settlements(context)
        earnings, forfeiture = Earnings(context, is_disputed), Forfeiture(context)
        tokenizers = Tokenizers(links.tokenizers)
        # Buyers and sellers count by what is listed, so an unusable file must not be.
        counts_by = frozenset(sha256 for sha256 in links.tokenizers if tokenizers.find(sha256))
        disputes = Disputes(context, tokenizers.find)
        return cls(context, *services, earnings, forfeiture, disputes, links.keeper, links.outbound, counts_by)

    async def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Run `question` in a thread and return its result.

        The market's errors become errors of this API. Raises RequestInvalid for invalid records and statements,
        and NotFound for unregistered ones. Raises Conflict if the marketplace refuses.
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
        except MarketplaceRefuses as error:
            raise Conflict(str(error), code=error.code) from error
