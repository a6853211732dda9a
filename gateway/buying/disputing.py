"""Disputes that sellers have opened, answered by what both have signed: receipts, and nothing of any text.

A receipt says what we counted of a request that the house has forgotten, and the seller's own final receipt, which
came with the answer, that it said the same then. Where neither decides, the texts do: those we show to nobody.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.buying.errors import SellerRefuses
from gateway.buying.house import House, Open
from gateway.buying.store import KEPT_MS, Store
from gateway.cloud_worker.logbook import note
from gateway.market.outbound import Unreachable
from market.records.envelope import open_record

EVERY_S = 60.0
AT_ONCE = 32
"""Channels of one look: all have their turn within the day that a side has to answer, up to some 45,000."""
_ANSWERED_MAX = 4096


@dataclass(slots=True)
class Disputing:
    """Looks at some channels at a time. What was answered is not answered again until the next process."""

    house: House
    store: Store
    now_ms: Callable[[], int]
    _after: str = ""
    _answered: set[str] = field(default_factory=set)

    async def look(self) -> None:
        """Answer what is open on the next channels. Raises SQLAlchemyError."""
        page = await asyncio.to_thread(self.store.settling, self._after, AT_ONCE, self.now_ms() - KEPT_MS)
        for row in page:
            try:
                await self._look_at(row)
            except Unreachable as error:
                note("disputes_not_known", error=str(error))
                return
            except SellerRefuses as error:
                note("disputes_not_known", channel=row.id[:16], error=str(error))
            self._after = row.id
        if len(page) < AT_ONCE:
            self._after = ""

    async def _look_at(self, row: Any) -> None:
        allocation = msgspec.msgpack.decode(row.records, type=list[bytes])[0]
        for each in await self.house.disputed(open_record(allocation).digest):
            job = await asyncio.to_thread(self.store.job, row.id, each.lane, each.seq)
            if each.id in self._answered or job is None or job.receipt is None:
                continue
            await self._answer(allocation, each, job)
            if len(self._answered) >= _ANSWERED_MAX:
                self._answered.clear()
            self._answered.add(each.id)

    async def _answer(self, allocation: bytes, each: Open, job: Any) -> None:
        """Ours alone where the seller's is refused with it."""
        both = (job.receipt, job.claim) if job.claim else (job.receipt,)
        for receipts in (both, (job.receipt,)):
            try:
                await self.house.answer(allocation, each.lane, receipts)
            except SellerRefuses as error:
                note("dispute_not_answered", dispute=each.id, error=str(error))
            else:
                note("dispute_answered", dispute=each.id)
                return
