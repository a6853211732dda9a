"""Audits of sellers, drawn from ordinary requests within a daily budget, and their consequences."""

import asyncio
from collections.abc import Coroutine
from random import SystemRandom

from sqlalchemy.exc import SQLAlchemyError

from market.audits.audit_client import AuditClient
from market.audits.audit_target import AuditTarget as Audited
from market.audits.auditor import Auditor
from market.audits.probe_store import ProbeStore, Suspension
from market.audits.prompts import questions
from market.buyer.orders import Orders
from market.buyer.purchasable_listing import PurchasableListing
from market.buyer.sellers import SellerTracker
from market.buyer.shop import Shop
from market.buyer.store import BuyingStore
from market.protocol.audits.verdicts import Audit, Decision
from market.protocol.matching.track import Tally
from runtime.workers.logbook import note

DAY_MS = 86_400_000
REFRESHED_EVERY_S = 5.0
_NOTING_MAX = 256
_WHY_CHARS_MAX = 300


class Audits:
    """Audit results of sellers. One event loop owns it."""

    def __init__(
        self,
        probe_store: ProbeStore,
        store: BuyingStore,
        shop: Shop,
        sellers: SellerTracker,
        orders: Orders,
        asking: AuditClient,
    ) -> None:
        self.probe_store = probe_store
        self._store = store
        self._sellers = sellers
        self._day_nano = orders.audit_nano_per_day
        self._now_ms = sellers.now_ms
        self._shop = shop
        self._chance = SystemRandom()
        prompts = questions(self._chance)
        self.auditor = Auditor(
            asking,
            probe_store,
            self._tell,
            chance=self._chance.random,
            now_ms=self._now_ms,
            pause_s_max=orders.bounds.audit_pause_s,
            left_nano=self._left_nano,
            peers=self._peers,
            prompt=lambda: next(prompts),
        )
        self._noting: set[asyncio.Task[None]] = set()

    def served(self, offering: PurchasableListing, is_odd: bool) -> None:
        """Maybe draw an audit, in the background, after a seller answered an ordinary request."""
        if not self._day_nano or len(self._noting) >= _NOTING_MAX:
            return
        self._begin(self._note(audited_as(offering), is_odd))

    async def run(self) -> None:
        """Audit until cancelled, and pick up suspensions that the admin has ended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.auditor.run(), name="auditor")
            tasks.create_task(self._refresh(), name="suspensions")

    async def load(self) -> None:
        """Load the stored suspensions and tallies."""
        suspensions, tallies = await asyncio.to_thread(
            lambda: (self.probe_store.suspensions(), self.probe_store.tallies())
        )
        self._sellers.suspend({seller: why_of(each) for seller, each in suspensions.items()})
        self._sellers.take_audits(tallies)

    async def settled(self) -> None:
        """Return once no audit is drawn or due."""
        await asyncio.gather(*self._noting)
        await self.auditor.idle()
        await asyncio.gather(*self._noting)

    async def stop(self) -> None:
        for task in self._noting:
            task.cancel()
        await asyncio.gather(*self._noting, return_exceptions=True)

    async def _note(self, offering: Audited, is_odd: bool) -> None:
        try:
            await self.auditor.served(offering, is_odd=is_odd)
        except SQLAlchemyError as error:
            note("audits_unknown", error=type(error).__name__)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESHED_EVERY_S)
            if self._noting:
                continue
            try:
                await self.load()
            except SQLAlchemyError as error:
                note("audits_unknown", error=type(error).__name__)

    def _peers(self, offering: Audited) -> list[Audited]:
        """Return sellers of the same weights, without new sellers, as one operator may run many of those.

        The order is random, so that no seller can influence it.
        """
        alike = self._shop.of_weights(offering.weights, offering.quantization)
        found = [each for each in alike if not each.is_probation]
        return [audited_as(each) for each in self._chance.sample(found, len(found))]

    def _left_nano(self) -> int:
        return self._day_nano - self._store.audits_nano(self._now_ms() - DAY_MS)

    def _tell(self, offering: Audited, audit: Audit, decision: Decision) -> None:
        """Apply the audit's verdict at once, then write it down in the background."""
        tally = self._sellers.audited(offering.seller, is_good=not audit.has_failed)
        found = None
        if decision.action in ("suspend", "forfeit"):
            found = Suspension(offering.seller, offering.model, audit.made_ms, decision.reasons)
            self._sellers.suspend({**self._sellers.suspended, offering.seller: why_of(found)})
            note("seller_suspended", seller=offering.seller[:16], reasons=why_of(found))
        self._begin(self._keep(offering.seller, tally, found))

    async def _keep(self, seller: str, tally: Tally, found: Suspension | None) -> None:
        try:
            if found is not None:
                await asyncio.to_thread(self.probe_store.suspend, found)
            await asyncio.to_thread(self.probe_store.put_tally, seller, tally)
        except SQLAlchemyError as error:
            note("audits_unkept", error=type(error).__name__)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="audit note")
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)


def why_of(suspension: Suspension) -> str:
    """Return the suspension's first reasons, each once, as text for users."""
    reasons = "; ".join(dict.fromkeys(suspension.reasons))
    return f"{suspension.model}: {reasons}"[:_WHY_CHARS_MAX]


def audited_as(offering: PurchasableListing) -> Audited:
    listing = offering.listing
    return Audited(
        listing=offering.record.digest,
        seller=offering.seller,
        owner=offering.seller,
        model=listing.id,
        weights=listing.weights_sha256,
        quantization=listing.quantization,
        is_probation=offering.is_probation,
    )
