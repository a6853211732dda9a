"""A marketplace that signs what it is sent, publishes listings, and can be away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from accounting.money import parse_usd
from market.protocol.channels.terms import Allocation
from market.protocol.records.amounts import Amount
from market.protocol.records.book import book_of
from market.protocol.records.envelope import Record, Saying, sign
from market.protocol.records.exchange import summary
from tests.fakes.market_seller import served
from tests.market.parties import id_of, key_of

KEY = "sk-marketplace-12"


@dataclass
class FakeMarketplace:
    """`allocations` are those that were given, `records` what gossip tells."""

    name: str = "marketplace"
    port: int = 0
    is_away: bool = False
    loses_answers: int = 0
    is_at_it: int = 0
    """So many are told that a request with their key is being answered."""
    waits_s: float = 0.0
    """So long it takes to put credits aside."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    tokenizers: list[str] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    """The statuses with which the next settlements are refused."""
    settled: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return id_of(self.name)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _marketplace(self, request: web.Request) -> web.Response:
        self._check()
        return web.json_response(
            {"identity": self.id, "statements": [], "fee_bps": 500, "tokenizers": self.tokenizers}
        )

    async def _allocate(self, request: web.Request) -> web.Response:
        self._check()
        order = await request.json()
        if request.headers["authorization"] != f"Bearer {KEY}" or not request.headers["idempotency-key"]:
            raise web.HTTPUnauthorized
        self.requests.append(order)
        self.keys.append(request.headers["idempotency-key"])
        await asyncio.sleep(self.waits_s)
        if self.loses_answers:
            self.loses_answers -= 1
            assert request.transport
            request.transport.abort()
        elif self.is_at_it:
            self.is_at_it -= 1
            return web.json_response({"error": {"code": "idempotency_key_in_use"}}, status=409)
        now_ms = time.time_ns() // 10**6
        limit = Amount(parse_usd(order["limit"]))
        body = Allocation(order["buyer"], order["seller"], limit, f"hold:{len(self.requests)}", 1)
        ends_ms = now_ms + order["hours"] * 3_600_000
        saying = Saying("allocation", self.id, f"a{len(self.requests)}", 1, now_ms, body, ends_ms)
        return web.json_response({"allocation": sign(saying, key_of(self.name)).raw.decode()})

    async def _settle(self, request: web.Request) -> web.Response:
        self._check()
        if self.refusals:
            return web.Response(status=self.refusals.pop(0))
        self.settled.append(await request.json())
        return web.json_response({})

    async def _digest(self, request: web.Request) -> web.Response:
        self._check()
        digest = {
            "summary": summary(book_of(self.records)),
            "records": [each.raw.decode() for each in self.records],
        }
        return web.json_response(digest)

    async def _records(self, request: web.Request) -> web.Response:
        return web.json_response({"taken": 0})

    def _check(self) -> None:
        if self.is_away:
            raise web.HTTPServiceUnavailable

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/market/v1/marketplace", self._marketplace),
            web.post("/market/v1/allocations", self._allocate),
            web.post("/market/v1/settlements", self._settle),
            web.post("/market/v1/gossip/digest", self._digest),
            web.post("/market/v1/gossip/records", self._records),
        ]


@asynccontextmanager
async def clearing() -> AsyncIterator[FakeMarketplace]:
    marketplace = FakeMarketplace()
    async with served(marketplace.routes) as port:
        marketplace.port = port
        yield marketplace
