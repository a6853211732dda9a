"""The house as its sellers see it: who it is, pinned at first contact, and what is told to it."""

import asyncio
import hashlib
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gateway.market.bookkeeper import BookKeeper
from gateway.market.identity import OwnIdentity
from gateway.market.outbound import Outbound, Reply
from gateway.selling.store import SellingStore, Unsubmitted
from market.errors import IdentityInvalid
from market.records.envelope import Hex32

_PROOF = b"millrace seller\n"
_PINNED = "house"
ASK_S = 20.0
SHOW_S = 120.0
"""A prompt may be megabytes."""
LANES_BYTES_MAX = 2**22

S = TypeVar("S", bound=Struct)


class _Facts(Struct, frozen=True):
    """What a house says of itself, as far as a seller needs it."""

    identity: Hex32
    statements: list[str] = []
    ledger_head: str | None = None


class _Account(Struct, frozen=True):
    """Whose key it is, and the identities that earn for it."""

    account: Annotated[str, Meta(max_length=200)]
    identities: list[str] = []


class LaneTold(Struct, frozen=True):
    """How the house says that a lane stands; `receipt` is the digest of our newest receipt that it knows."""

    lane: int
    seq: int
    receipt: Hex32
    standing: Literal["claimed", "disputed", "settled"]
    records: list[str] = []


class LanesTold(Struct, frozen=True):
    """Of one allocation, with what its buyer has said about its keys."""

    lanes: list[LaneTold]
    statements: list[str] = []


class HouseRefused(Exception):
    """The house answered, and not as it should; `status` is its answer's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the house answers {status}: {message[:300]}")
        self.status = status


class House:
    """One house, by its address. Until it was reached once its identity is not known, and nothing is believed."""

    def __init__(
        self,
        url: str,
        key: str | None,
        own: OwnIdentity,
        outbound: Outbound,
        keeper: BookKeeper,
        store: SellingStore,
    ) -> None:
        self.url = url.rstrip("/")
        self.identity: str | None = None
        self.ledger_head: str | None = None
        self._key = key
        self._own = own
        self._outbound = outbound
        self._keeper = keeper
        self._store = store

    async def remember(self) -> None:
        """Who this house was when it was first met: its allocations count also while it is down."""
        pinned = await self._store.fact(self._fact)
        self.identity = pinned.decode() if pinned else None

    async def meet(self) -> None:
        """Ask it who it is, and what its books' newest block is.

        Raises:
            Unreachable, HouseRefused: it does not say.
            IdentityInvalid: it is another one than when it was first met.
        """
        facts = _read(await self._outbound.ask(f"{self.url}/market/v1/house", timeout_s=ASK_S), _Facts)
        identity = facts.identity
        if self.identity not in (None, identity):
            raise IdentityInvalid(
                f"the house at {self.url} was {str(self.identity)[:16]} and says that it is {identity[:16]} now"
            )
        statements = [raw.encode() for raw in facts.statements]
        await asyncio.to_thread(self._keeper.add, statements, self.url)
        if self.identity is None:
            await self._store.keep_fact(self._fact, identity.encode())
            self.identity = identity
        head = (facts.ledger_head or "").rpartition(":")[2]
        self.ledger_head = head if len(head) == 64 else None

    async def submit(self, channel: Unsubmitted, statements: list[bytes]) -> None:
        """Tell it all that is known of a channel; as often as you like. Raises Unreachable, HouseRefused."""
        body = {
            "allocation": channel.backing.records[0].decode(),
            "records": [raw.decode() for raw in channel.evidence],
            "statements": [raw.decode() for raw in (*channel.backing.statements, *statements)],
        }
        await self._post("/market/v1/settlements", body, {})

    async def lanes(self, allocation: str) -> LanesTold:
        """How the lanes of an allocation stand, by its record's digest. Raises Unreachable, HouseRefused."""
        url = f"{self.url}/market/v1/disputes/{allocation}"
        reply = await self._outbound.ask(url, headers=self._ours, timeout_s=ASK_S, bytes_max=LANES_BYTES_MAX)
        return _read(reply, LanesTold)

    async def dispute(self, body: dict[str, Any]) -> None:
        """Show the house what a lane's buyer denies. Raises Unreachable, HouseRefused."""
        await self._post("/market/v1/disputes", body, self._ours, timeout_s=SHOW_S)

    async def register(self) -> None:
        """Let this identity's sales be earned by the account of our key, at a house that was met.

        Raises:
            Unreachable, HouseRefused.
        """
        if self._key is None or self.identity is None:
            return
        headers = self._ours
        reply = await self._outbound.ask(f"{self.url}/market/v1/sellers/me", headers=headers, timeout_s=ASK_S)
        me = _read(reply, _Account)
        identity, signer = self._own.id, self._own.signer
        if identity in me.identities:
            return
        # For this house alone: at another one, an account of this name may be somebody else's.
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
        """Whether there is an account of ours, without which nothing can be disputed."""
        return self._key is not None

    @property
    def _ours(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    @property
    def _fact(self) -> str:
        return f"{_PINNED}:{hashlib.sha256(self.url.encode()).hexdigest()[:48]}"


def _checked(reply: Reply) -> Reply:
    if reply.status not in (200, 201):
        raise HouseRefused(reply.status, reply.body[:300].decode("utf-8", "replace"))
    return reply


def _read(reply: Reply, shape: type[S]) -> S:
    """Whatever a house answers, it is no more than this."""
    try:
        return msgspec.json.decode(_checked(reply).body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HouseRefused(reply.status, f"its answer makes no sense: {str(error)[:100]}") from None
