"""Buying credit: channels opened by the marketplace's allocations, renewed before they run out.

While the marketplace is unavailable, trade with a seller goes on as long as its allocation lasts.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from market.buyer.channels import ChannelState, Pseudonym, pack_records, restored
from market.buyer.errors import SellerRefuses
from market.buyer.lines import Lines
from market.buyer.marketplace_client import BuyerMarketplaceClient
from market.buyer.receipts import sign_left_open
from market.buyer.shielded import shielded
from market.buyer.store import BuyingStore
from market.errors import MarketError
from market.protocol.channels.channel import Channel
from market.protocol.channels.terms import ChannelTerms
from market.protocol.identity.keys import identity_of
from market.protocol.identity.pseudonyms import pseudonym_for
from market.protocol.records.key_status import StandingOf
from runtime.times import now_ms
from runtime.workers.logbook import note

RENEWED_BELOW = 2
"""A channel is renewed when less than one part in this many of its credit is left..."""
RENEWED_BEFORE_MS = 2 * 3_600_000
"""...or this long before it ends."""
_PAUSE_S = 15.0
"""After the marketplace refused, it is not asked for that seller again for this long, unless a request needs it."""
_RENEWING_MAX = 16
UNUSED_MAX = 3
"""A seller may have at most this many times the wanted credit unused."""
ALLOCATIONS_PER_HOUR = 32
SETTLED_FOR_MS = 24 * 3_600_000
"""The marketplace settles for this long after an allocation's end."""


class BuyerCredit:
    """All spendable credit. One event loop owns it."""

    def __init__(
        self,
        store: BuyingStore,
        marketplace: BuyerMarketplaceClient | None,
        secret: bytes,
        standing: StandingOf,
        allocation_nano: int,
        lines: Lines | None = None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._marketplace = marketplace
        self._secret = secret
        self._allocation_nano = allocation_nano
        self._lines = lines
        self._now_ms = now_ms
        self._renewing: dict[str, asyncio.Task[None]] = {}
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._refused_s: dict[str, float] = {}
        self._allocated_s: dict[str, deque[float]] = {}
        self._states: dict[str, list[ChannelState]] = {}
        # Ended channels are still settled for a day: every job on them needs our receipt.
        for row in store.channels(now_ms() - SETTLED_FOR_MS):
            try:
                terms = ChannelTerms(row.buyer, row.seller, row.backing)
                sign_left_open(store, terms, self.pseudonym(row.seller), standing)
                state = restored(row, store.last_jobs(row.id), standing)
            except MarketError as error:
                note("channel_unreadable", channel=row.id, error=str(error))
                continue
            self._states.setdefault(state.terms.seller, []).append(state)

    def pseudonym(self, seller: str) -> Pseudonym:
        """Return our identity towards this seller if a marketplace guarantees for us."""
        signer = pseudonym_for(self._secret, seller)
        return Pseudonym(identity_of(signer.public_key), signer)

    def speaker(self, state: ChannelState) -> Pseudonym:
        """Return our identity on this channel."""
        if self._lines and any(each is state for each in self._lines.of(state.terms.seller)):
            return self._lines.speaker()
        return self.pseudonym(state.terms.seller)

    def is_partner(self, seller: str) -> bool:
        """Return whether there is a credit line; we then buy nothing there on the marketplace's credit."""
        return self._lines is not None and self._lines.is_partner(seller)

    def is_at_hand(self, seller: str) -> bool:
        """Return whether we can buy from this seller without asking the marketplace."""
        return any(state.room_nano > 0 for state in self._serving(seller))

    @property
    def has_marketplace(self) -> bool:
        """Return whether a marketplace is configured, which may give credit if it answers."""
        return self._marketplace is not None

    async def channel_for(self, seller: str, most_nano: int) -> ChannelState:
        """Return a channel with a free lane and room for the request; of those, the one with the least room.

        Raises:
            SellerRefuses: there is none, and the marketplace gives no more.
        """
        if self._lines and self._lines.is_partner(seller):
            await self._lines.refresh(seller)
        found = self._find(seller, most_nano)
        if self.is_partner(seller):
            if found is None:
                raise SellerRefuses("the credit line is used up", "no_credit")
            return found
        if found is None:
            lock = self._asking.setdefault(seller, asyncio.Lock())
            async with lock:
                found = self._find(seller, most_nano)
                if found is None:
                    # Finish even if the caller hangs up: the next request can use what the marketplace reserves.
                    await shielded(self._allocate(seller, max(most_nano, self._allocation_nano)))
                    found = self._find(seller, most_nano)
        if found is None:
            raise SellerRefuses("there is not enough credit for this request", "no_credit")
        self._renew(found)
        return found

    def unsent_receipts(self) -> list[tuple[ChannelState, int]]:
        """Return channels and idle lanes whose newest receipt the seller may lack."""
        of_lines = self._lines.all() if self._lines else []
        states = [*of_lines, *(state for states in self._states.values() for state in states)]
        return [
            (state, lane) for state in states for lane in state.unsent_receipts if lane not in state.open_ceilings
        ]

    async def stop(self) -> None:
        for task in self._renewing.values():
            task.cancel()
        await asyncio.gather(*self._renewing.values(), return_exceptions=True)

    def _find(self, seller: str, most_nano: int) -> ChannelState | None:
        fitting = [t for t in self._serving(seller) if t.room_nano >= most_nano and t.free_lane() is not None]
        return min(fitting, key=lambda state: (state.room_nano, state.expires_ms), default=None)

    def _serving(self, seller: str) -> list[ChannelState]:
        now_ms = self._now_ms()
        of_line = self._lines.of(seller) if self._lines else []
        return [state for state in of_line or self._states.get(seller, []) if state.serves(now_ms)]

    def _renew(self, state: ChannelState) -> None:
        """Ask the marketplace for more in the background if little is left."""
        seller = state.terms.seller
        others_nano = sum(max(0, each.room_nano) for each in self._serving(seller))
        is_low = others_nano * RENEWED_BELOW < self._allocation_nano
        ends = all(each.expires_ms < self._now_ms() + RENEWED_BEFORE_MS for each in self._serving(seller))
        quarantine = time.monotonic() < self._refused_s.get(seller, 0.0)
        if (
            (is_low or ends)
            and not quarantine
            and seller not in self._renewing
            and len(self._renewing) < _RENEWING_MAX
        ):
            task = asyncio.create_task(self._renew_quietly(seller), name=f"credit-{seller[:8]}")
            self._renewing[seller] = task
            task.add_done_callback(lambda _: self._renewing.pop(seller, None))

    async def _renew_quietly(self, seller: str) -> None:
        try:
            lock = self._asking.setdefault(seller, asyncio.Lock())
            async with lock:
                await self._allocate(seller, self._allocation_nano)
        except (SellerRefuses, SQLAlchemyError) as error:
            note("not_renewed", seller=seller[:16], error=str(error))

    def _check_bounds(self, seller: str, limit_nano: int) -> None:
        """Bound how much credit can wait with a seller that does not let us use it.

        Raises:
            SellerRefuses: too much is reserved for the seller compared with what is spent.
        """
        now_ms, since_s = self._now_ms(), time.monotonic() - 3600
        states = [state for state in self._states.get(seller, ()) if state.expires_ms > now_ms]
        unused_nano = sum(max(0, state.room_nano) for state in states)
        recent = [at_s for at_s in self._allocated_s.get(seller, ()) if at_s > since_s]
        if unused_nano >= UNUSED_MAX * limit_nano or len(recent) >= ALLOCATIONS_PER_HOUR:
            raise SellerRefuses("enough credit is reserved for this seller already", "no_credit")

    async def _allocate(self, seller: str, limit_nano: int) -> None:
        if self._marketplace is None:
            raise SellerRefuses(
                "no marketplace is configured, and there is no credit for this seller", "no_credit"
            )
        try:
            self._check_bounds(seller, limit_nano)
            pseudonym = self.pseudonym(seller)
            terms, allocation, record = await self._marketplace.allocate(pseudonym.id, seller, limit_nano)
        except SellerRefuses:
            now_s = time.monotonic()
            self._refused_s = {each: until_s for each, until_s in self._refused_s.items() if until_s > now_s}
            self._refused_s[seller] = now_s + _PAUSE_S
            raise
        now_s = time.monotonic()
        self._allocated_s = {each: at for each, at in self._allocated_s.items() if at[-1] > now_s - 3600}
        self._allocated_s.setdefault(seller, deque(maxlen=ALLOCATIONS_PER_HOUR)).append(now_s)
        limit_nano, expires_ms = int(allocation.limit_nano), record.expires_ms or 0
        self._store.add_channel(
            id=terms.channel,
            seller=seller,
            buyer=terms.buyer,
            backing=terms.backing,
            records=pack_records([record.raw]),
            limit_nano=limit_nano,
            expires_ms=expires_ms,
        )
        states = [
            state for state in self._states.get(seller, ()) if state.expires_ms > self._now_ms() - SETTLED_FOR_MS
        ]
        if all(state.terms.channel != terms.channel for state in states):
            states.append(ChannelState(terms, limit_nano, expires_ms, (record.raw,), Channel(terms)))
        self._states[seller] = states
