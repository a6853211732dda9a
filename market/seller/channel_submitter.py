"""Submit what was signed on channels to the marketplace, in any order, until it knows everything."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from market.errors import IdentityInvalid
from market.marketplace.statements import STATEMENTS_MAX
from market.network.identity import OwnIdentity
from market.network.marketplace import MarketplaceRefused
from market.network.outbound import Unreachable
from market.network.record_keeper import RecordKeeper
from market.protocol.channels.terms import Allocation
from market.protocol.identity.connected import connected
from market.protocol.identity.statements import check_statement
from market.protocol.records.envelope import Record, open_record
from market.seller.marketplace_client import SellerMarketplaceClient
from market.seller.store import SellingStore, Unsubmitted
from runtime.times import now_ms

log = structlog.get_logger(__name__)

AGAIN_MS = 5_000
AGAIN_MS_MAX = 3_600_000
"""A channel that the marketplace refuses is submitted again after this long, then twice as long, up to this maximum."""
BUSY_MAX = 3
"""After this many channels in a row that the marketplace is too busy for, the others wait, too."""


@dataclass(frozen=True, slots=True)
class ChannelSubmitter:
    """Sends everything that the marketplace must know, in any order."""

    marketplace: SellerMarketplaceClient | None
    own: OwnIdentity
    store: SellingStore
    keeper: RecordKeeper
    every_s: float
    pause_s_max: float = 60.0
    clock_ms: Callable[[], int] = now_ms

    async def run(self) -> None:
        """Run until cancelled; while the marketplace fails or refuses, everything is kept and sent later."""
        pause_s = 1.0
        while self.marketplace is not None:
            try:
                await self.marketplace.meet()
                await self._register(self.marketplace)
                await self.submit()
            except (Unreachable, MarketplaceRefused, IdentityInvalid, SQLAlchemyError) as error:
                log.warning("receipts not submitted to the marketplace yet", why=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self.pause_s_max)
            else:
                pause_s = 1.0
                await asyncio.sleep(self.every_s)

    async def _register(self, marketplace: SellerMarketplaceClient) -> None:
        """Register; a refusal is logged for the owner to fix, and channels are submitted all the same."""
        try:
            await marketplace.register()
        except MarketplaceRefused as error:
            log.error("the marketplace does not register this seller", why=str(error))

    async def submit(self) -> None:
        """Submit all waiting channels. A refused channel waits; the others do not.

        Raises:
            Unreachable: the marketplace is unavailable.
            MarketplaceRefused: the marketplace is too busy.
        """
        busy = 0
        while self.marketplace is not None and (waiting := await self.store.unsubmitted(self.clock_ms())):
            for channel in waiting:
                try:
                    await self._tell(self.marketplace, channel)
                except MarketplaceRefused as error:
                    await self._put_off(channel, error)
                    busy = busy + 1 if error.is_busy else 0
                    if busy == BUSY_MAX:
                        raise
                else:
                    busy = 0
                    await self.store.note_submitted(channel.backing.channel, channel.changes)

    async def _tell(self, marketplace: SellerMarketplaceClient, channel: Unsubmitted) -> None:
        """Send surplus statements first if there are more than the marketplace accepts at once; it stores them."""
        statements = await asyncio.to_thread(self._statements, channel)
        *before, last = _chunks(statements) or [[]]
        allocation = channel.backing.records[0]
        for some in before:
            await marketplace.settle(allocation, (), some)
        await marketplace.settle(allocation, channel.evidence, last)

    def _statements(self, channel: Unsubmitted) -> list[bytes]:
        """Return all statements about our keys and the buyer's that the channel may depend on, each once, in
        order.
        """
        buyer = open_record(channel.backing.records[0]).read("allocation", Allocation).buyer
        raws = dict.fromkeys((*channel.backing.statements, *self.keeper.statements_of(buyer)))
        by_buyer = connected(buyer, [each for each in map(open_record, raws) if _is_statement(each, buyer)])
        return [each.raw for each in _in_order(by_buyer)] + [each.raw for each in _in_order(self.own.statements)]

    async def _put_off(self, channel: Unsubmitted, error: MarketplaceRefused) -> None:
        """Retry later: a proxy may have refused, or the marketplace may be fixed by then."""
        pause_ms = min(AGAIN_MS << min(channel.refusals, 16), AGAIN_MS_MAX)
        name = channel.backing.channel
        log.error("the marketplace refuses a channel", channel=name, again_in_s=pause_ms // 1000, why=str(error))
        await self.store.note_refused(name, self.clock_ms() + pause_ms)


def _is_statement(record: Record, issuer: str) -> bool:
    if record.issuer != issuer or record.kind not in ("founding", "rotation", "revocation"):
        return False
    check_statement(record)
    return True


def _in_order(statements: Iterable[Record]) -> list[Record]:
    """Sort so that each statement follows from earlier ones: a partial list is stored only if it is connected."""
    kinds = {"founding": 0, "rotation": 1, "revocation": 2}
    return sorted(statements, key=lambda each: (kinds[each.kind], each.revision))


def _chunks(raws: list[bytes]) -> list[list[bytes]]:
    return [raws[start : start + STATEMENTS_MAX] for start in range(0, len(raws), STATEMENTS_MAX)]
