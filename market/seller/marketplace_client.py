"""Client of the marketplace for sellers: our account there, and what was signed on our channels."""

import hashlib
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from market.network.identity import OwnIdentity
from market.network.marketplace import MarketplaceClient
from market.network.outbound import Outbound
from market.network.record_keeper import RecordKeeper
from market.protocol.records.envelope import Hex32
from market.seller.store import SellingStore

_PROOF = b"millrace seller\n"
SHOW_S = 120.0
"""Longer, because a prompt may be megabytes."""


class _Account(Struct, frozen=True):
    """Our key's account, and the identities that earn for it."""

    account: Annotated[str, Meta(max_length=200)]
    identities: list[str] = []


class LaneReport(Struct, frozen=True):
    """The marketplace's view of a lane; `receipt` is the digest of our newest receipt that it knows."""

    lane: int
    seq: int
    receipt: Hex32
    standing: Literal["claimed", "disputed", "settled"]
    records: list[str] = []


class AllocationLanes(Struct, frozen=True):
    """The lanes of one allocation, with its buyer's statements about its keys."""

    lanes: list[LaneReport]
    statements: list[str] = []


class SellerMarketplaceClient(MarketplaceClient):
    """One marketplace, by its address."""

    def __init__(
        self,
        url: str,
        key: str | None,
        own: OwnIdentity,
        outbound: Outbound,
        keeper: RecordKeeper,
        store: SellingStore,
    ) -> None:
        super().__init__(url, key, outbound, keeper, self._store_known)
        self._own = own
        self._store = store
        self._fact = f"marketplace:{hashlib.sha256(self.url.encode()).hexdigest()[:48]}"
        self._known = f"{self._fact}:tokenizers"

    async def remember(self) -> None:
        """Load the pinned identity, and what it counts by: its allocations count even while it is down."""
        pinned, known = await self._store.fact(self._fact), await self._store.fact(self._known)
        self.identity = pinned.decode() if pinned else None
        self.tokenizers = frozenset(known.decode().split()) if known else frozenset()

    async def _store_known(self, identity: str, tokenizers: frozenset[str]) -> None:
        # The identity last: with it alone, no voucher of a listed tokenizer would be taken while it is down.
        await self._store.keep_fact(self._known, " ".join(sorted(tokenizers)).encode())
        await self._store.keep_fact(self._fact, identity.encode())

    async def lanes(self, allocation: str) -> AllocationLanes:
        """Return the state of an allocation's lanes, by its record's digest. Raises Unreachable, MarketplaceRefused."""
        return await self._lanes(AllocationLanes, allocation)

    async def dispute(self, body: dict[str, Any]) -> None:
        """Show the marketplace what a lane's buyer denies. Raises Unreachable, MarketplaceRefused."""
        await self._ask("/market/v1/disputes", body, self._ours, timeout_s=SHOW_S)

    async def register(self) -> None:
        """Let our key's account earn this identity's sales, at a marketplace that was contacted before.

        Raises:
            Unreachable, MarketplaceRefused.
        """
        if self._key is None or self.identity is None:
            return
        me = await self._read(_Account, "/market/v1/sellers/me", headers=self._ours)
        identity, signer = self._own.id, self._own.signer
        if identity in me.identities:
            return
        # The proof names this marketplace: at another one, an account of this name may belong to someone else.
        proof = signer.sign(_PROOF + f"{self.identity}\n{me.account}".encode()).hex()
        body = {
            "identity": identity,
            "key": signer.public_key.hex(),
            "proof": proof,
            "statements": [record.raw.decode() for record in self._own.statements],
        }
        key = hashlib.sha256(f"{identity}\n{me.account}".encode()).hexdigest()
        await self._ask("/market/v1/sellers", body, self._ours | {"idempotency-key": key})

    @property
    def has_key(self) -> bool:
        """Return whether we have an account, without which nothing can be disputed."""
        return self._key is not None
