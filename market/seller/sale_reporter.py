"""Report sales to our own gateway's ledger until they are booked, and again if a sale has grown."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.seller.delivery import now_ms
from market.seller.own_gateway import GatewayAway, OwnGateway, UpstreamRefused
from market.seller.store import SellingStore

log = structlog.get_logger(__name__)

EVERY_S = 5.0
SWEEP_S = 3600.0
_PAUSE_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class SaleReporter:
    store: SellingStore
    gateway: OwnGateway
    clock_ms: Callable[[], int] = now_ms

    async def run(self) -> None:
        """Run until cancelled."""
        pause_s, swept_s = EVERY_S, -SWEEP_S
        while True:
            try:
                if time.monotonic() - swept_s >= SWEEP_S:
                    await self.store.sweep(self.clock_ms())
                    swept_s = time.monotonic()
                await self.book()
                pause_s = EVERY_S
            except (GatewayAway, SQLAlchemyError) as error:
                log.warning("sales not posted yet", why=str(error))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            await asyncio.sleep(pause_s)

    async def book(self) -> None:
        """Report all sales there are now. Raises GatewayAway."""
        while waiting := await self.store.unbooked():
            for sale in waiting:
                try:
                    await self.gateway.book(sale)
                except UpstreamRefused as error:
                    log.error("sale not posted", channel=sale.channel, seq=sale.seq, why=str(error))
                await self.store.note_booked(sale)
