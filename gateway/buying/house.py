"""The clearing house, as its customer sees it: who it is, credit put aside for a seller, what was signed on it."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from accounting.money import format_usd
from gateway.buying.errors import SellerRefuses
from gateway.buying.store import Store
from gateway.market.bookkeeper import BookKeeper
from gateway.market.outbound import Outbound, Reply, Unreachable
from market.channels.terms import Allocation, ChannelTerms, read_allocation
from market.errors import MarketError
from market.records.envelope import Record, open_record

HOURS = 24
_TIMEOUT_S = 10.0
_OK, _UNKNOWN, _FAILS = 200, 404, 500
_BUSY = (408, 429)
_AT_IT = "idempotency_key_in_use"
"""A request with the same key is being answered: one that we have stopped waiting for."""
_JSON = {"content-type": "application/json"}
_FACT = "house "
_UNANSWERED_MAX = 1024
_LANES_BYTES_MAX = 2**22
"""Of each of 64 lanes up to four records, and what the buyer has said of its keys."""

S = TypeVar("S", bound=Struct)


class _Said(Struct, frozen=True):
    identity: str
    statements: list[str] = []


class _Allocated(Struct, frozen=True):
    allocation: str


class _Error(Struct, frozen=True):
    code: str | None = None


class _Refused(Struct, frozen=True):
    error: _Error


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
    """A dispute that is not decided, and the request that it is about."""

    id: str
    lane: int
    seq: int


class House:
    """Asked seldom: what it says is kept. `pinned` is the identity that the owner expects, if any."""

    def __init__(
        self, url: str, key: str, pinned: str, outbound: Outbound, store: Store, keeper: BookKeeper
    ) -> None:
        self.url = url
        self._key = key
        self._outbound = outbound
        self._store = store
        self._keeper = keeper
        self._pinned = pinned or store.fact(_FACT + url) or ""
        self._unanswered: dict[tuple[str, str, int], str] = {}

    @property
    def identity(self) -> str:
        """Empty before it has ever been reached."""
        return self._pinned

    async def meet(self) -> None:
        """Find out who it is, and which keys speak for it.

        Raises:
            SellerRefuses: it cannot be asked, or is another one than before.
        """
        said = _read(await self._ask("/market/v1/house", None, {}), _Said)
        if self._pinned and said.identity != self._pinned:
            raise SellerRefuses(f"{self.url} is another house than before", "house_changed")
        if not self._pinned:
            self._store.put_fact(_FACT + self.url, said.identity)
            self._pinned = said.identity
        await asyncio.to_thread(self._keeper.add, [each.encode() for each in said.statements], self.url)

    async def allocate(self, buyer: str, seller: str, limit_nano: int) -> tuple[ChannelTerms, Allocation, Record]:
        """Have credits put aside for a seller, for a day.

        Raises:
            SellerRefuses: the house does not, or is not there.
        """
        if not self._pinned:
            await self.meet()
        body = {"buyer": buyer, "seller": seller, "limit": format_usd(limit_nano), "hours": HOURS}
        # Where an answer got lost the credits may be put aside already: the same key finds them.
        asked = buyer, seller, limit_nano
        if len(self._unanswered) >= _UNANSWERED_MAX:
            self._unanswered.clear()
        key = self._unanswered.setdefault(asked, secrets.token_hex(16))
        headers = self._ours | {"idempotency-key": key, **_JSON}
        reply = await self._ask("/market/v1/allocations", msgspec.json.encode(body), headers)
        if not _is_open(reply):
            self._unanswered.pop(asked, None)
        said = _read(reply, _Allocated)
        try:
            record = open_record(said.allocation.encode())
            terms, allocation = read_allocation(record, self._pinned, self._keeper.standing)
        except MarketError as error:
            raise SellerRefuses(f"the house's allocation is none: {error}", "no_credit") from None
        if (terms.buyer, terms.seller) != (buyer, seller) or record.expires_ms is None:
            raise SellerRefuses("the house's allocation is for somebody else", "no_credit")
        return terms, allocation, record

    async def settle(self, allocation: bytes, records: Sequence[bytes]) -> None:
        """Tell it what we have signed on an allocation's channel; as often as you like.

        Raises:
            Unreachable: it is away, or has no time.
            SellerRefuses: it does not take that.
        """
        told = {"allocation": allocation.decode(), "records": [record.decode() for record in records]}
        _checked(await self._tell("/market/v1/settlements", told, _JSON))

    async def disputed(self, allocation: str) -> list[Open]:
        """Open disputes about requests of an allocation, by its record's digest; none where it is another house's.

        Raises:
            Unreachable: it is away, or has no time.
            SellerRefuses: it does not say, or nothing that can be read.
        """
        url = f"{self.url}/market/v1/disputes/{allocation}"
        reply = await self._outbound.ask(url, headers=self._ours, timeout_s=_TIMEOUT_S, bytes_max=_LANES_BYTES_MAX)
        if reply.status == _UNKNOWN:
            return []
        lanes = _read(_checked(reply), _Lanes).lanes
        open_ones = (lane for lane in lanes if lane.dispute and lane.dispute.status == "open")
        return [Open(lane.dispute.id, lane.lane, lane.dispute.seq) for lane in open_ones if lane.dispute]

    async def answer(self, allocation: bytes, lane: int, receipts: Sequence[bytes]) -> None:
        """Bring receipts to an open dispute; raises as `settle`."""
        told = {"allocation": allocation.decode(), "lane": lane, "receipts": [each.decode() for each in receipts]}
        _checked(await self._tell("/market/v1/disputes", told, _JSON | self._ours))

    async def _tell(self, path: str, told: dict[str, Any], headers: dict[str, str]) -> Reply:
        body = msgspec.json.encode(told)
        return await self._outbound.ask(self.url + path, body, headers=headers, timeout_s=_TIMEOUT_S)

    @property
    def _ours(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def _ask(self, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        try:
            return await self._outbound.ask(self.url + path, body, headers=headers, timeout_s=_TIMEOUT_S)
        except Unreachable as error:
            raise SellerRefuses(f"the house cannot be reached: {error.reason}", "no_credit") from None


def _is_open(reply: Reply) -> bool:
    """Whether the house has not said what became of a key: it failed, has no time, or is still at it."""
    if reply.status in _BUSY or reply.status >= _FAILS:
        return True
    try:
        return msgspec.json.decode(reply.body, type=_Refused).error.code == _AT_IT
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _checked(reply: Reply) -> Reply:
    """Raises Unreachable, SellerRefuses."""
    if reply.status in _BUSY or reply.status >= _FAILS:
        raise Unreachable(f"the house answers {reply.status}")
    if reply.status != _OK:
        raise SellerRefuses(f"the house answers {reply.status}", "refused")
    return reply


def _read(reply: Reply, shape: type[S]) -> S:
    if reply.status != _OK:
        raise SellerRefuses(f"the house answered {reply.status}", "no_credit")
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SellerRefuses("the house said nothing that can be read", "no_credit") from None
