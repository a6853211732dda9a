"""Publish listings: sign them again before they expire and on each change, and withdraw them in time.

Revisions are milliseconds of the clock. They only grow, across restarts and clocks that are set back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from market.network.gossip import Gossip
from market.network.identity import OwnIdentity
from market.protocol.listings.listing import Listing, read_listing
from market.protocol.records.envelope import Record
from market.seller.live_listings import ListingOffer, LiveListings
from market.seller.reach import Reaches
from market.seller.seals import Seal, Seals
from market.seller.sellable_models import Spare, listing_name, listing_of
from market.seller.store import SellingStore
from market.settings.seller import SellingSettings
from runtime.times import now_ms

LISTED_S = 300.0
RENEW_S = 120.0
CAPACITY_EVERY_S = 10.0
"""Slots change with every preemptible request; a change of slots alone makes a new revision at most this often."""
_REVISION = "revision"


@dataclass(frozen=True, slots=True)
class _Listed:
    listing: Listing
    seal: Seal
    spare: Spare
    since_s: float
    key: str


class Publisher:
    """Keeps the listings of what is sold. `show` publishes what can be sold; `withdraw` ends all of it.

    `monotonic` gives seconds that never go back.
    """

    def __init__(
        self,
        own: OwnIdentity,
        settings: SellingSettings,
        reaches: Reaches,
        live_listings: LiveListings,
        store: SellingStore,
        gossip: Gossip,
        *,
        clock_ms: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._settings = settings
        self._reaches = reaches
        self._live_listings = live_listings
        self._store = store
        self._gossip = gossip
        self._clock_ms = clock_ms
        self._monotonic = monotonic
        self._seals = Seals(monotonic)
        self._listed: dict[str, _Listed] = {}

    async def show(self, spares: list[Spare]) -> None:
        """List exactly these models as they are now.

        Raises:
            ListingInvalid, RecordInvalid: the settings make a listing that buyers would reject.
        """
        spare_by_name = {spare.sellable.sold.market_id: spare for spare in spares if spare.slots > 0}
        seal = self._seals.current()
        records = []
        for name in sorted(self._listed.keys() - spare_by_name.keys()):
            records += await self._end(name)
        for name, spare in spare_by_name.items():
            listing = listing_of(self._settings, spare, seal.key.public, self._reaches.now.address, is_ready=True)
            if self._is_due(self._listed.get(name), listing):
                records.append(await self._sign(spare, listing, seal))
        if records:
            await self._gossip.publish(records)

    async def withdraw(self) -> None:
        """Publish at once that nothing is offered any more."""
        records = []
        for name in sorted(self._listed):
            records += await self._end(name)
        if records:
            await self._gossip.publish(records)

    def _is_due(self, known: _Listed | None, listing: Listing) -> bool:
        if known is None or known.key != self._own.signer.public_key.hex():
            return True
        age_s = self._monotonic() - known.since_s
        same = msgspec.structs.replace(known.listing, capacity=listing.capacity) == listing
        return age_s >= RENEW_S or not same or (known.listing != listing and age_s >= CAPACITY_EVERY_S)

    async def _sign(self, spare: Spare, listing: Listing, seal: Seal) -> Record:
        """Sign a revision and make it live: vouchers for it are accepted from now on."""
        name = spare.sellable.sold.market_id
        made_ms = self._clock_ms()
        expires_ms = made_ms + round(LISTED_S * 1000)
        revision = await self._revision(made_ms)
        record = self._own.say("listing", listing_name(name), revision, listing, made_ms, expires_ms)
        read_listing(record, allows_loopback=self._settings.allows_loopback)  # as buyers will
        now_s = self._monotonic()
        if listing.is_ready:
            self._live_listings.put(
                ListingOffer(record.digest, record.raw, spare.sellable, listing, seal, now_s + LISTED_S)
            )
            self._listed[name] = _Listed(listing, seal, spare, now_s, record.key)
        return record

    async def _end(self, name: str) -> list[Record]:
        known = self._listed.pop(name)
        listing = msgspec.structs.replace(known.listing, is_ready=False)
        return [await self._sign(known.spare, listing, known.seal)]

    async def _revision(self, made_ms: int) -> int:
        last = await self._store.fact(_REVISION)
        revision = max(made_ms, int(last or b"0") + 1)
        await self._store.keep_fact(_REVISION, b"%d" % revision)
        return revision
