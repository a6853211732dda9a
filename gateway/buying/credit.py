"""How much may be bought from whom: channels that the house's allocations open, renewed before they run out.

Trade with a seller goes on while the house is away, as long as what was put aside before lasts.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from gateway.buying.channels import Pseudonym, Tie, pack_records, restored
from gateway.buying.errors import SellerRefuses
from gateway.buying.house import House
from gateway.buying.lines import Lines
from gateway.buying.signing import sign_left_open
from gateway.buying.store import Store
from gateway.buying.unbroken import unbroken
from gateway.cloud_worker.logbook import note
from market.channels.channel import Channel
from market.channels.terms import ChannelTerms
from market.errors import MarketError
from market.identity.keys import identity_of
from market.identity.pseudonyms import pseudonym_for
from market.records.key_status import StandingOf

RENEWED_BELOW = 2
"""A channel is renewed when less than one in so many parts of its credit is left..."""
RENEWED_BEFORE_MS = 2 * 3_600_000
"""...or so long before it ends."""
_PAUSE_S = 15.0
"""After the house has refused, before it is asked for that seller again unless a request needs it."""
_RENEWING_MAX = 16
UNUSED_MAX = 3
"""So many times what is wanted may wait with one seller unused."""
ALLOCATIONS_PER_HOUR = 32
SETTLED_FOR_MS = 24 * 3_600_000
"""The house settles so long after an allocation's end."""


class Credit:
    """Everything that may be spent. One event loop owns it."""

    def __init__(
        self,
        store: Store,
        house: House | None,
        secret: bytes,
        standing: StandingOf,
        allocation_nano: int,
        lines: Lines | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6,
    ) -> None:
        self._store = store
        self._house = house
        self._secret = secret
        self._allocation_nano = allocation_nano
        self._lines = lines
        self._now_ms = now_ms
        self._renewing: dict[str, asyncio.Task[None]] = {}
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._refused_s: dict[str, float] = {}
        self._allocated_s: dict[str, deque[float]] = {}
        self._ties: dict[str, list[Tie]] = {}
        # What has ended is still settled for a day: nothing of it may stay without our receipt.
        for row in store.channels(now_ms() - SETTLED_FOR_MS):
            try:
                terms = ChannelTerms(row.buyer, row.seller, row.backing)
                sign_left_open(store, terms, self.pseudonym(row.seller), standing)
                tie = restored(row, store.last_jobs(row.id), standing)
            except MarketError as error:
                note("channel_unreadable", channel=row.id, error=str(error))
                continue
            self._ties.setdefault(tie.terms.seller, []).append(tie)

    def pseudonym(self, seller: str) -> Pseudonym:
        """Who we are to this seller, where a house stands behind us."""
        signer = pseudonym_for(self._secret, seller)
        return Pseudonym(identity_of(signer.public_key), signer)

    def speaker(self, tie: Tie) -> Pseudonym:
        """Who we are on this channel."""
        if self._lines and any(each is tie for each in self._lines.of(tie.terms.seller)):
            return self._lines.speaker()
        return self.pseudonym(tie.terms.seller)

    def is_friend(self, seller: str) -> bool:
        """Whether there is a credit line: then nothing is bought there on the house's credit."""
        return self._lines is not None and self._lines.is_friend(seller)

    def is_at_hand(self, seller: str) -> bool:
        """Whether something could be bought from this seller without asking the house."""
        return any(tie.room_nano > 0 for tie in self._serving(seller))

    @property
    def has_house(self) -> bool:
        """Whether a house is set up: credit may be had from it, where it answers."""
        return self._house is not None

    async def tie_for(self, seller: str, most_nano: int) -> Tie:
        """A channel with a free lane and room for a request; the fullest that will do.

        Raises:
            SellerRefuses: there is none, and the house gives no more.
        """
        if self._lines and self._lines.is_friend(seller):
            await self._lines.refresh(seller)
        found = self._find(seller, most_nano)
        if self.is_friend(seller):
            if found is None:
                raise SellerRefuses("the credit line does not reach", "no_credit")
            return found
        if found is None:
            lock = self._asking.setdefault(seller, asyncio.Lock())
            async with lock:
                found = self._find(seller, most_nano)
                if found is None:
                    # Whoever hangs up meanwhile: what the house puts aside is the next one's.
                    await unbroken(self._allocate(seller, max(most_nano, self._allocation_nano)))
                    found = self._find(seller, most_nano)
        if found is None:
            raise SellerRefuses("there is no credit for so large a request", "no_credit")
        self._renew(found)
        return found

    def untold(self) -> list[tuple[Tie, int]]:
        """Channels and lanes of which a seller may not have our newest receipt, and on which nothing runs."""
        of_lines = self._lines.all() if self._lines else []
        ties = [*of_lines, *(tie for ties in self._ties.values() for tie in ties)]
        return [(tie, lane) for tie in ties for lane in tie.untold if lane not in tie.open_ceilings]

    async def stop(self) -> None:
        for task in self._renewing.values():
            task.cancel()
        await asyncio.gather(*self._renewing.values(), return_exceptions=True)

    def _find(self, seller: str, most_nano: int) -> Tie | None:
        fitting = [t for t in self._serving(seller) if t.room_nano >= most_nano and t.free_lane() is not None]
        return min(fitting, key=lambda tie: (tie.room_nano, tie.expires_ms), default=None)

    def _serving(self, seller: str) -> list[Tie]:
        now_ms = self._now_ms()
        of_line = self._lines.of(seller) if self._lines else []
        return [tie for tie in of_line or self._ties.get(seller, []) if tie.serves(now_ms)]

    def _renew(self, tie: Tie) -> None:
        """Have more put aside in the background, where little is left."""
        seller = tie.terms.seller
        others_nano = sum(max(0, each.room_nano) for each in self._serving(seller))
        is_low = others_nano * RENEWED_BELOW < self._allocation_nano
        ends = all(each.expires_ms < self._now_ms() + RENEWED_BEFORE_MS for each in self._serving(seller))
        rests = time.monotonic() < self._refused_s.get(seller, 0.0)
        if (is_low or ends) and not rests and seller not in self._renewing and len(self._renewing) < _RENEWING_MAX:
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
        """However much a seller does not let us use: little of our credit waits with it.

        Raises:
            SellerRefuses: more is put aside for it than is spent.
        """
        now_ms, since_s = self._now_ms(), time.monotonic() - 3600
        ties = [tie for tie in self._ties.get(seller, ()) if tie.expires_ms > now_ms]
        unused_nano = sum(max(0, tie.room_nano) for tie in ties)
        recent = [at_s for at_s in self._allocated_s.get(seller, ()) if at_s > since_s]
        if unused_nano >= UNUSED_MAX * limit_nano or len(recent) >= ALLOCATIONS_PER_HOUR:
            raise SellerRefuses("enough is put aside for this seller", "no_credit")

    async def _allocate(self, seller: str, limit_nano: int) -> None:
        if self._house is None:
            raise SellerRefuses("no house is set up, and no credit is at hand", "no_credit")
        try:
            self._check_bounds(seller, limit_nano)
            pseudonym = self.pseudonym(seller)
            terms, allocation, record = await self._house.allocate(pseudonym.id, seller, limit_nano)
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
        ties = [tie for tie in self._ties.get(seller, ()) if tie.expires_ms > self._now_ms() - SETTLED_FOR_MS]
        if all(tie.terms.channel != terms.channel for tie in ties):
            ties.append(Tie(terms, limit_nano, expires_ms, (record.raw,), Channel(terms)))
        self._ties[seller] = ties
