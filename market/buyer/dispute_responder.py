"""Answer disputes opened by sellers with what both sides signed: receipts only, never any text.

Our receipt shows what we counted of a request that the marketplace has forgotten. The seller's own final receipt, which
came with the answer, shows that it said the same then. If neither decides, only the texts could, and those we show
to no one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from market.buyer.marketplace_client import BuyerMarketplaceClient, Open
from market.buyer.store import KEPT_MS, BuyingStore
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Unreachable
from market.protocol.records.envelope import open_record
from runtime.workers.logbook import note

EVERY_S = 60.0
AT_ONCE = 32
"""Channels per round. With up to about 45,000, each is checked within the day that a side has to answer."""
_ANSWERED_MAX = 4096


@dataclass(slots=True)
class DisputeResponder:
    """Check some channels at a time. A dispute is answered once per process."""

    marketplace: BuyerMarketplaceClient
    store: BuyingStore
    now_ms: Callable[[], int]
    _after: str = ""
    _answered: set[str] = field(default_factory=set)

    async def look(self) -> None:
        """Answer open disputes of the next channels. Raises SQLAlchemyError."""
        page = await asyncio.to_thread(self.store.settling, self._after, AT_ONCE, self.now_ms() - KEPT_MS)
        for row in page:
            try:
                await self._look_at(row)
            except Unreachable as error:
                note("disputes_not_known", error=str(error))
                return
            except MarketplaceRefused as error:
                note("disputes_not_known", channel=row.id[:16], error=str(error))
                if error.is_busy:
                    return
            self._after = row.id
        if len(page) < AT_ONCE:
            self._after = ""

    async def _look_at(self, row: Any) -> None:
        allocation = msgspec.msgpack.decode(row.records, type=list[bytes])[0]
        for each in await self.marketplace.disputed(open_record(allocation).digest):
            job = await asyncio.to_thread(self.store.job, row.id, each.lane, each.seq)
            if each.id in self._answered or job is None or job.receipt is None:
                continue
            await self._answer(allocation, each, job)
            if len(self._answered) >= _ANSWERED_MAX:
                self._answered.clear()
            self._answered.add(each.id)

    async def _answer(self, allocation: bytes, each: Open, job: Any) -> None:
        """Send both receipts, or only our own if the marketplace rejects the seller's with it."""
        both = (job.receipt, job.claim) if job.claim else (job.receipt,)
        for receipts in (both, (job.receipt,)):
            try:
                await self.marketplace.answer(allocation, each.lane, receipts)
            except MarketplaceRefused as error:
                if error.is_busy:
                    raise
                note("dispute_not_answered", dispute=each.id, error=str(error))
            else:
                note("dispute_answered", dispute=each.id)
                return
