"""Client of the marketplace for sellers: its identity, pinned at first contact, and what sellers send it."""

import asyncio
import hashlib
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from market.errors import IdentityInvalid
from market.network.identity import OwnIdentity
from market.network.outbound import Outbound, OutboundReply
from market.network.record_keeper import RecordKeeper
from market.protocol.records.envelope import Hex32
from market.seller.store import SellingStore, Unsubmitted

_PROOF = b"millrace seller\n"
_PINNED = "marketplace"
ASK_S = 20.0
SHOW_S = 120.0
"""Longer, because a prompt may be megabytes."""
LANES_BYTES_MAX = 2**22

S = TypeVar("S", bound=Struct)


class _Facts(Struct, frozen=True):
    """The facts that a seller needs about a marketplace, as the marketplace states them."""

    identity: Hex32
    statements: list[str] = []
    ledger_checkpoint: str | None = None
    tokenizers: frozenset[Hex32] = frozenset()


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


class MarketplaceRefused(Exception):
    """The marketplace answered with an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the marketplace answered {status}: {message[:300]}")
        self.status = status


class SellerMarketplaceClient:
    """One marketplace, by its address. Until first contact its identity is unknown, and nothing from it is believed."""

    def __init__(
        self,
        url: str,
        key: str | None,
        own: OwnIdentity,
        outbound: Outbound,
        keeper: RecordKeeper,
        store: SellingStore,
    ) -> None:
        self.url = url.rstrip("/")
        self.identity: str | None = None
        self.ledger_checkpoint: str | None = None
        self.tokenizers: frozenset[str] = frozenset()
        """SHA-256 of the tokenizers that the marketplace counts by in disputes."""
        self._key = key
        self._own = own
        self._outbound = outbound
        self._keeper = keeper
        self._store = store

    async def remember(self) -> None:
        """Load the pinned identity, and what it counts by: its allocations count even while it is down."""
        pinned, known = await self._store.fact(self._fact), await self._store.fact(self._known)
        self.identity = pinned.decode() if pinned else None
        self.tokenizers = frozenset(known.decode().split()) if known else frozenset()

    async def meet(self) -> None:
        """Ask for its identity and its ledger's newest block.

        Raises:
            Unreachable, MarketplaceRefused: the marketplace gives no valid answer.
            IdentityInvalid: its identity differs from the pinned one.
        """
        facts = _read(await self._outbound.ask(f"{self.url}/market/v1/marketplace", timeout_s=ASK_S), _Facts)
        identity = facts.identity
        if self.identity not in (None, identity):
            raise IdentityInvalid(
                f"the marketplace at {self.url} changed its identity from {str(self.identity)[:16]} to {identity[:16]}"
            )
        statements = [raw.encode() for raw in facts.statements]
        await asyncio.to_thread(self._keeper.add, statements, self.url)
        if facts.tokenizers != self.tokenizers:
            await self._store.keep_fact(self._known, " ".join(sorted(facts.tokenizers)).encode())
            self.tokenizers = facts.tokenizers
        if self.identity is None:
            await self._store.keep_fact(self._fact, identity.encode())
            self.identity = identity
        head = (facts.ledger_checkpoint or "").rpartition(":")[2]
        self.ledger_checkpoint = head if len(head) == 64 else None

    async def submit(self, channel: Unsubmitted, statements: list[bytes]) -> None:
        """Send everything known of a channel. Repeating it is safe. Raises Unreachable, MarketplaceRefused."""
        body = {
            "allocation": channel.backing.records[0].decode(),
            "records": [raw.decode() for raw in channel.evidence],
            "statements": [raw.decode() for raw in (*channel.backing.statements, *statements)],
        }
        await self._post("/market/v1/settlements", body, {})

    async def lanes(self, allocation: str) -> AllocationLanes:
        """Return the state of an allocation's lanes, by its record's digest. Raises Unreachable, MarketplaceRefused."""
        url = f"{self.url}/market/v1/disputes/{allocation}"
        reply = await self._outbound.ask(url, headers=self._ours, timeout_s=ASK_S, bytes_max=LANES_BYTES_MAX)
        return _read(reply, AllocationLanes)

    async def dispute(self, body: dict[str, Any]) -> None:
        """Show the marketplace what a lane's buyer denies. Raises Unreachable, MarketplaceRefused."""
        await self._post("/market/v1/disputes", body, self._ours, timeout_s=SHOW_S)

    async def register(self) -> None:
        """Let our key's account earn this identity's sales, at a marketplace that was contacted before.

        Raises:
            Unreachable, MarketplaceRefused.
        """
        if self._key is None or self.identity is None:
            return
        headers = self._ours
        reply = await self._outbound.ask(f"{self.url}/market/v1/sellers/me", headers=headers, timeout_s=ASK_S)
        me = _read(reply, _Account)
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
        await self._post("/market/v1/sellers", body, headers | {"idempotency-key": key})

    async def _post(
        self, path: str, body: dict[str, Any], headers: dict[str, str], *, timeout_s: float = ASK_S
    ) -> None:
        headers, packed = {"content-type": "application/json", **headers}, msgspec.json.encode(body)
        _checked(await self._outbound.ask(self.url + path, packed, headers=headers, timeout_s=timeout_s))

    @property
    def has_key(self) -> bool:
        """Return whether we have an account, without which nothing can be disputed."""
        return self._key is not None

    @property
    def _ours(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    @property
    def _fact(self) -> str:
        return f"{_PINNED}:{hashlib.sha256(self.url.encode()).hexdigest()[:48]}"

    @property
    def _known(self) -> str:
        return f"{self._fact}:tokenizers"


def _checked(reply: OutboundReply) -> OutboundReply:
    if reply.status not in (200, 201):
        raise MarketplaceRefused(reply.status, reply.body[:300].decode("utf-8", "replace"))
    return reply


def _read(reply: OutboundReply, shape: type[S]) -> S:
    """Read a marketplace's answer, accepting only these fields."""
    try:
        return msgspec.json.decode(_checked(reply).body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MarketplaceRefused(reply.status, f"its answer is invalid: {str(error)[:100]}") from None
