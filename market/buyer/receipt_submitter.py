"""Send what we signed to the marketplace until it takes it, so that no seller settles without it.

If the buyer's receipt does not arrive in time, the marketplace pays the seller by its own receipt, up to the voucher's
ceiling.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from market.buyer.marketplace_client import BuyerMarketplaceClient
from market.buyer.store import BuyingStore
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Unreachable
from runtime.workers.logbook import note

EVERY_S = 5.0
"""Receipts of a channel are sent together at this interval, because a marketplace limits requests per network."""
AGAIN_S = 15.0
AWAY_S_MAX = 120.0
"""Far less than the time that a buyer has to answer."""
REFUSED_S_MAX = 3600.0
AWAY_MAX = 3
"""After this many channels in a row without an answer, the others wait, too."""
AT_ONCE = 64
FLUSH_S = 3.0


class _Rest(NamedTuple):
    failures: int
    until_s: float


@dataclass(slots=True)
class ReceiptSubmitter:
    """Sends every channel with receipts that the marketplace may lack; the list of those is on disk."""

    marketplace: BuyerMarketplaceClient
    store: BuyingStore
    clock_s: Callable[[], float] = time.monotonic
    _resting: dict[str, _Rest] = field(default_factory=dict)

    async def submit(self) -> None:
        """Send everything there is, except what just failed. Raises SQLAlchemyError."""
        away, after = 0, ""
        while page := await asyncio.to_thread(self.store.unsubmitted, after, AT_ONCE):
            for row in page:
                rest = self._resting.get(row.channel)
                if rest and rest.until_s > self.clock_s():
                    continue
                try:
                    await self._tell(row)
                except (Unreachable, MarketplaceRefused) as error:
                    is_away = isinstance(error, Unreachable) or error.is_busy
                    self._put_off(row.channel, error, AWAY_S_MAX if is_away else REFUSED_S_MAX)
                    away = away + 1 if is_away else 0
                    if away == AWAY_MAX:
                        return
                else:
                    self._resting.pop(row.channel, None)
                    away = 0
            after = page[-1].channel

    async def flush_on_shutdown(self) -> None:
        """Send as much as a few seconds allow: a process that stops now may be off for a long time."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self.submit()
        except (TimeoutError, SQLAlchemyError) as error:
            note("marketplace_not_told", error=type(error).__name__)

    async def _tell(self, row: Any) -> None:
        allocation = msgspec.msgpack.decode(row.records, type=list[bytes])[0]
        signed = await asyncio.to_thread(self.store.signed, row.channel)
        await self.marketplace.settle(allocation, [raw for job in signed for raw in (job.voucher, job.receipt)])
        await asyncio.to_thread(self.store.note_submitted, row.channel, row.changes)

    def _put_off(self, channel: str, error: Exception, pause_s_max: float) -> None:
        """Wait twice as long each time; the cause may be gone by then."""
        now_s, known = self.clock_s(), self._resting.get(channel)
        failures = known.failures + 1 if known else 1
        pause_s = min(AGAIN_S * 2 ** min(failures - 1, 16), pause_s_max)
        note("marketplace_not_told", channel=channel[:16], again_in_s=pause_s, error=str(error))
        # Forget channels whose wait ended long ago.
        since_s = now_s - 2 * REFUSED_S_MAX
        self._resting = {each: rest for each, rest in self._resting.items() if rest.until_s > since_s}
        self._resting[channel] = _Rest(failures, now_s + pause_s)
