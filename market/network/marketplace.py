"""What buyers and sellers share as a marketplace's clients: its identity, pinned at first contact, and its answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from market.errors import IdentityInvalid
from market.network.outbound import Outbound
from market.network.record_keeper import RecordKeeper
from market.protocol.records.envelope import Hex32

_LANES_BYTES_MAX = 2**22
"""Room for 64 lanes with up to four records each, and the buyer's statements about its keys."""

S = TypeVar("S", bound=Struct)


class _Facts(Struct, frozen=True):
    """The facts that a client needs about a marketplace, as the marketplace states them."""

    identity: Hex32
    statements: list[str] = []
    ledger_checkpoint: str | None = None
    tokenizers: frozenset[Hex32] = frozenset()


class _Error(Struct, frozen=True):
    code: str | None = None


class _ErrorBody(Struct, frozen=True):
    error: _Error


class MarketplaceRefused(Exception):
    """The marketplace answered with an error or nonsense; `status` is its HTTP status, `code` its error code."""

    def __init__(self, status: int, body: bytes, problem: str = "") -> None:
        self.status = status
        # The rest of the body may say anything.
        self.summary = problem or f"the marketplace answered {status}"
        super().__init__(problem or f"{self.summary}: {body[:300].decode('utf-8', 'replace')}")
        try:
            self.code = msgspec.json.decode(body, type=_ErrorBody).error.code
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.code = None

    @property
    def is_busy(self) -> bool:
        """Return whether the marketplace fails or has too much to do, so that a later attempt may succeed."""
        return self.status in (408, 429) or self.status >= 500


class MarketplaceClient:
    """One marketplace, by its address. `identity` is None until first contact: nothing from it is believed then.

    `keep` stores the identity of the first contact; a seller also stores the tokenizers.
    """

    timeout_s = 20.0

    def __init__(
        self,
        url: str,
        key: str | None,
        outbound: Outbound,
        keeper: RecordKeeper,
        keep: Callable[[str, frozenset[str]], Awaitable[None]],
    ) -> None:
        self.url = url.rstrip("/")
        self.identity: str | None = None
        self.ledger_checkpoint: str | None = None
        self.tokenizers: frozenset[str] = frozenset()
        """SHA-256 of the tokenizers that the marketplace counts by in disputes."""
        self._key = key
        self._outbound = outbound
        self._keeper = keeper
        self._keep = keep

    async def meet(self) -> None:
        """Ask for its identity, its keys and its ledger's newest block.

        Raises:
            Unreachable, MarketplaceRefused: the marketplace gives no valid answer.
            IdentityInvalid: its identity differs from the pinned one.
        """
        facts = await self._read(_Facts, "/market/v1/marketplace")
        if self.identity not in (None, facts.identity):
            raise IdentityInvalid(
                f"the marketplace at {self.url} has another identity than before:"
                f" {facts.identity[:16]}, not {str(self.identity)[:16]}"
            )
        await asyncio.to_thread(self._keeper.add, [raw.encode() for raw in facts.statements], self.url)
        if (self.identity, self.tokenizers) != (facts.identity, facts.tokenizers):
            await self._keep(facts.identity, facts.tokenizers)
            self.identity, self.tokenizers = facts.identity, facts.tokenizers
        checkpoint = (facts.ledger_checkpoint or "").rpartition(":")[2]
        self.ledger_checkpoint = checkpoint if len(checkpoint) == 64 else None

    async def settle(
        self, allocation: bytes, records: Sequence[bytes], statements: Sequence[bytes] | None = None
    ) -> None:
        """Send what was signed on an allocation's channel. Repeating it is safe.

        Raises Unreachable, MarketplaceRefused.
        """
        fields: dict[str, Any] = {"allocation": allocation.decode(), "records": _texts(records)}
        if statements is not None:
            fields["statements"] = _texts(statements)
        await self._ask("/market/v1/settlements", fields, {})

    async def _lanes(self, shape: type[S], allocation: str) -> S:
        """Return the state of an allocation's lanes, by its record's digest."""
        return await self._read(
            shape, f"/market/v1/disputes/{allocation}", headers=self._ours, bytes_max=_LANES_BYTES_MAX
        )

    async def _read(self, shape: type[S], path: str, fields: dict[str, Any] | None = None, **options: Any) -> S:
        """Read the marketplace's answer, accepting only these fields. Raises Unreachable, MarketplaceRefused."""
        body = await self._ask(path, fields, **options)
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"the marketplace's answer is invalid: {str(error)[:100]}"
            raise MarketplaceRefused(200, b"", problem) from None

    async def _ask(
        self,
        path: str,
        fields: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
        bytes_max: int = 2**20,
    ) -> bytes:
        """POST the fields, or GET without. Return the body. Raises Unreachable, MarketplaceRefused."""
        body = None if fields is None else msgspec.json.encode(fields)
        kind = {} if body is None else {"content-type": "application/json"}
        reply = await self._outbound.ask(
            self.url + path,
            body,
            headers=kind | dict(headers or {}),
            timeout_s=timeout_s or self.timeout_s,
            bytes_max=bytes_max,
        )
        if reply.status not in (200, 201):
            raise MarketplaceRefused(reply.status, reply.body)
        return reply.body

    @property
    def _ours(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}


def _texts(raws: Sequence[bytes]) -> list[str]:
    return [raw.decode() for raw in raws]
