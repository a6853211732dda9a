"""Client of the marketplace for buyers: allocations for sellers, and settlement of what we signed."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from accounting.money import format_usd
from market.buyer.errors import SellerRefuses
from market.buyer.store import BuyingStore
from market.errors import IdentityInvalid, MarketError
from market.network.marketplace import MarketplaceClient, MarketplaceRefused
from market.network.outbound import Outbound, Unreachable
from market.network.record_keeper import RecordKeeper
from market.protocol.channels.terms import Allocation, ChannelTerms, read_allocation
from market.protocol.records.envelope import Record, open_record

HOURS = 24
_UNKNOWN = 404
_AT_IT = "idempotency_key_in_use"
"""The marketplace is still answering a request with this key, one that we stopped waiting for."""
_FACT = "marketplace "
_UNANSWERED_MAX = 1024


class _Allocated(Struct, frozen=True):
    allocation: str


class _Dispute(Struct, frozen=True):
    id: str
    seq: int
    status: str


class _Lane(Struct, frozen=True):
    lane: int
    dispute: _Dispute | None = None


class _Lanes(Struct, frozen=True):
    lanes: list[_Lane]


class Open(NamedTuple):
    """An undecided dispute, and the request that it is about."""

    id: str
    lane: int
    seq: int


class BuyerMarketplaceClient(MarketplaceClient):
    """The marketplace, asked seldom: its answers are stored. `pinned` is the identity that the admin expects, if
    any.
    """

    timeout_s = 10.0

    def __init__(
        self, url: str, key: str, pinned: str, outbound: Outbound, store: BuyingStore, keeper: RecordKeeper
    ) -> None:
        super().__init__(url, key, outbound, keeper, self._store_known)
        self.identity = pinned or store.fact(_FACT + url)
        self._store = store
        self._unanswered: dict[tuple[str, str, int], str] = {}

    async def _store_known(self, identity: str, _: frozenset[str]) -> None:
        await asyncio.to_thread(self._store.put_fact, _FACT + self.url, identity)

    async def allocate(self, buyer: str, seller: str, limit_nano: int) -> tuple[ChannelTerms, Allocation, Record]:
        """Reserve credits for a seller, for a day.

        Raises:
            SellerRefuses: the marketplace refuses, cannot be reached, or has another identity than before.
        """
        try:
            if not self.identity:
                await self.meet()
            allocation = await self._allocation(buyer, seller, limit_nano)
        except IdentityInvalid as error:
            raise SellerRefuses(str(error), "marketplace_changed") from None
        except Unreachable as error:
            raise SellerRefuses(f"the marketplace cannot be reached: {error.reason}", "no_credit") from None
        except MarketplaceRefused as error:
            raise SellerRefuses(error.summary, "no_credit") from None
        try:
            record = open_record(allocation.encode())
            terms, allocated = read_allocation(record, self.identity or "", self._keeper.standing)
        except MarketError as error:
            raise SellerRefuses(f"the marketplace's allocation is invalid: {error}", "no_credit") from None
        if (terms.buyer, terms.seller) != (buyer, seller) or record.expires_ms is None:
            raise SellerRefuses("the marketplace's allocation names other parties or no end", "no_credit")
        return terms, allocated, record

    async def _allocation(self, buyer: str, seller: str, limit_nano: int) -> str:
        """If an answer got lost, the credits may be reserved already: the same key finds them."""
        asked = buyer, seller, limit_nano
        if len(self._unanswered) >= _UNANSWERED_MAX:
            self._unanswered.clear()
        key = self._unanswered.setdefault(asked, secrets.token_hex(16))
        fields = {"buyer": buyer, "seller": seller, "limit": format_usd(limit_nano), "hours": HOURS}
        headers = self._ours | {"idempotency-key": key}
        try:
            allocated = await self._read(_Allocated, "/market/v1/allocations", fields, headers=headers)
        except MarketplaceRefused as error:
            if not error.is_busy and error.code != _AT_IT:
                self._unanswered.pop(asked, None)
            raise
        self._unanswered.pop(asked, None)
        return allocated.allocation

    async def disputed(self, allocation: str) -> list[Open]:
        """Return open disputes about an allocation, given by its record's digest; none if it is another marketplace's.

        Raises Unreachable, MarketplaceRefused.
        """
        try:
            lanes = (await self._lanes(_Lanes, allocation)).lanes
        except MarketplaceRefused as error:
            if error.status == _UNKNOWN:
                return []
            raise
        open_ones = (lane for lane in lanes if lane.dispute and lane.dispute.status == "open")
        return [Open(lane.dispute.id, lane.lane, lane.dispute.seq) for lane in open_ones if lane.dispute]

    async def answer(self, allocation: bytes, lane: int, receipts: Sequence[bytes]) -> None:
        """Send receipts for an open dispute; raises as `settle`."""
        fields = {
            "allocation": allocation.decode(),
            "lane": lane,
            "receipts": [each.decode() for each in receipts],
        }
        await self._ask("/market/v1/disputes", fields, self._ours)
