"""Client of the marketplace: its identity, allocations for sellers, and settlement of what we signed."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from accounting.money import format_usd
from market.buyer.errors import SellerRefuses
from market.buyer.store import BuyingStore
from market.errors import MarketError
from market.network.outbound import Outbound, OutboundReply, Unreachable
from market.network.record_keeper import RecordKeeper
from market.protocol.channels.terms import Allocation, ChannelTerms, read_allocation
from market.protocol.records.envelope import Record, open_record

HOURS = 24
_TIMEOUT_S = 10.0
_OK, _FAILS = 200, 500
_BUSY = (408, 429)
_AT_IT = "idempotency_key_in_use"
"""The marketplace is still answering a request with this key, one that we stopped waiting for."""
_JSON = {"content-type": "application/json"}
_FACT = "marketplace "
_UNANSWERED_MAX = 1024

S = TypeVar("S", bound=Struct)


class _MarketplaceFacts(Struct, frozen=True):
    identity: str
    statements: list[str] = []
    tokenizers: frozenset[str] = frozenset()


class _Allocated(Struct, frozen=True):
    allocation: str


class _Error(Struct, frozen=True):
    code: str | None = None


class _MarketplaceError(Struct, frozen=True):
    error: _Error


class BuyerMarketplaceClient:
    """The marketplace, asked seldom: its answers are stored. `pinned` is the identity that the admin expects, if
    any.
    """

    def __init__(
        self, url: str, key: str, pinned: str, outbound: Outbound, store: BuyingStore, keeper: RecordKeeper
    ) -> None:
        self.url = url
        self._key = key
        self._outbound = outbound
        self._store = store
        self._keeper = keeper
        self._pinned = pinned or store.fact(_FACT + url) or ""
        self._unanswered: dict[tuple[str, str, int], str] = {}
        self.tokenizers: frozenset[str] = frozenset()
        """SHA-256 of the tokenizers that the marketplace counts by in disputes; empty until it was reached."""

    @property
    def identity(self) -> str:
        """Return its identity; empty until it was first reached."""
        return self._pinned

    async def meet(self) -> None:
        """Fetch the marketplace's identity and its keys.

        Raises:
            SellerRefuses: the marketplace cannot be reached, or its identity has changed.
        """
        facts = _read(await self._ask("/market/v1/marketplace", None, {}), _MarketplaceFacts)
        if self._pinned and facts.identity != self._pinned:
            raise SellerRefuses(
                f"the marketplace at {self.url} has another identity than before", "marketplace_changed"
            )
        if not self._pinned:
            self._store.put_fact(_FACT + self.url, facts.identity)
            self._pinned = facts.identity
        self.tokenizers = facts.tokenizers
        await asyncio.to_thread(self._keeper.add, [each.encode() for each in facts.statements], self.url)

    async def allocate(self, buyer: str, seller: str, limit_nano: int) -> tuple[ChannelTerms, Allocation, Record]:
        """Reserve credits for a seller, for a day.

        Raises:
            SellerRefuses: the marketplace refuses or cannot be reached.
        """
        if not self._pinned:
            await self.meet()
        body = {"buyer": buyer, "seller": seller, "limit": format_usd(limit_nano), "hours": HOURS}
        # If an answer got lost, the credits may be reserved already: the same key finds them.
        allocation_terms = buyer, seller, limit_nano
        if len(self._unanswered) >= _UNANSWERED_MAX:
            self._unanswered.clear()
        key = self._unanswered.setdefault(allocation_terms, secrets.token_hex(16))
        headers = {"authorization": f"Bearer {self._key}", "idempotency-key": key, **_JSON}
        reply = await self._ask("/market/v1/allocations", msgspec.json.encode(body), headers)
        if not _is_open(reply):
            self._unanswered.pop(allocation_terms, None)
        allocated = _read(reply, _Allocated)
        try:
            record = open_record(allocated.allocation.encode())
            terms, allocation = read_allocation(record, self._pinned, self._keeper.standing)
        except MarketError as error:
            raise SellerRefuses(f"the marketplace's allocation is invalid: {error}", "no_credit") from None
        if (terms.buyer, terms.seller) != (buyer, seller) or record.expires_ms is None:
            raise SellerRefuses("the marketplace's allocation names other parties or no end", "no_credit")
        return terms, allocation, record

    async def settle(self, allocation: bytes, records: Sequence[bytes]) -> None:
        """Send the marketplace what we signed on an allocation's channel. Repeating it is safe.

        Raises:
            Unreachable: the marketplace is unavailable or busy.
            SellerRefuses: the marketplace rejects it.
        """
        fields = {"allocation": allocation.decode(), "records": [record.decode() for record in records]}
        body, url = msgspec.json.encode(fields), f"{self.url}/market/v1/settlements"
        reply = await self._outbound.ask(url, body, headers=_JSON, timeout_s=_TIMEOUT_S)
        if reply.status in _BUSY or reply.status >= _FAILS:
            raise Unreachable(f"the marketplace answered {reply.status}")
        if reply.status != _OK:
            raise SellerRefuses(f"the marketplace answered {reply.status}", "refused")

    async def _ask(self, path: str, body: bytes | None, headers: dict[str, str]) -> OutboundReply:
        try:
            return await self._outbound.ask(self.url + path, body, headers=headers, timeout_s=_TIMEOUT_S)
        except Unreachable as error:
            raise SellerRefuses(f"the marketplace cannot be reached: {error.reason}", "no_credit") from None


def _is_open(reply: OutboundReply) -> bool:
    """Return whether a key's outcome is unknown: the marketplace failed, is busy, or is still working on it."""
    if reply.status in _BUSY or reply.status >= _FAILS:
        return True
    try:
        return msgspec.json.decode(reply.body, type=_MarketplaceError).error.code == _AT_IT
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _read(reply: OutboundReply, shape: type[S]) -> S:
    if reply.status != _OK:
        raise SellerRefuses(f"the marketplace answered {reply.status}", "no_credit")
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SellerRefuses("the marketplace's answer is invalid", "no_credit") from None
