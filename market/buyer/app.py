"""The buyer's HTTP application: offers, and answers bought from sellers."""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qs

import msgspec

from market.buyer.audits import Audits
from market.buyer.buyer import Buyer
from market.buyer.flow import HAS_GONE
from market.buyer.market_request import read_market_request
from market.buyer.orders import BuyerLimits
from market.buyer.purchase_request import PurchaseRequest
from market.buyer.shop import Shop
from runtime.workers.app import KINDS, Kind, WorkerApp
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange, Message, Receive, Send, until_hung_up

WAIT_S_MAX = 25.0
_LOOK_EVERY_S = 1.0
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass
class BuyingApp(WorkerApp):
    """Serve the gateway only: the socket is accessible to its user alone."""

    buyer: Buyer
    shop: Shop
    bounds: BuyerLimits
    audits: Audits | None = None
    name = "buyer"
    busy = 503, "buyer_busy"
    failed = 500, "buyer_failed"
    _version: int = 0
    _offers: bytes = b""

    @property
    def limits(self) -> BuyerLimits:
        return self.bounds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(receive, send)
        exchange.has_gone = scope.get("state", {}).get(HAS_GONE, exchange.has_gone)
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/healthz":
            await exchange.answer(200, msgspec.json.encode(self.health()))
        elif method == "GET" and path == "/offers":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            await until_hung_up(exchange, self._tell_offers(exchange, query))
        elif method == "GET" and path == "/owed":
            after = _named(scope, "after")
            await exchange.answer(200, msgspec.json.encode(await self.buyer.owed(after)))
        elif method == "POST" and path == "/owed/booked":
            await self.buyer.forget_owed(_named(scope, "ids").split(","))
            await exchange.answer(200, b"{}")
        elif method == "POST" and path in KINDS:
            headers = dict(scope["headers"])
            await self.admit(exchange, partial(self._serve_body, exchange, KINDS[path], headers))
        else:
            await exchange.refuse(Refusal(404, "not_found", f"{method} {path} not found."))

    async def _tell_offers(self, exchange: Exchange, query: Mapping[str, list[str]]) -> None:
        """Send the offers at once if their version differs from `version`, else when they change or after
        `wait_s`.
        """
        try:
            known, wait_s = int(query.get("version", ["-1"])[0]), float(query.get("wait_s", ["0"])[0])
        except ValueError:
            known, wait_s = -1, 0.0
        until_s = time.monotonic() + min(WAIT_S_MAX, wait_s)
        self._look()
        while self._version == known and time.monotonic() < until_s:
            self.buyer.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self.buyer.changed.wait()
            self._look()
        await exchange.answer(200, self._offers)

    def _look(self) -> None:
        offers = msgspec.json.encode(self.shop.offers(self._version))
        if offers != self._offers:
            self._version += 1
            self._offers = msgspec.json.encode(self.shop.offers(self._version))

    async def _serve_body(self, exchange: Exchange, kind: Kind, headers: dict[bytes, bytes], body: bytes) -> None:
        await self.buyer.serve(_request(body, kind, headers), exchange)


def _named(scope: Message, field: str) -> str:
    """Return a field of the query; empty if it is missing."""
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get(field, [""])[0]


def _request(body: bytes, kind: Kind, headers: dict[bytes, bytes]) -> PurchaseRequest:
    """Raises Refusal."""
    listing = headers.get(b"x-millrace-listing", b"").decode("latin-1")
    ceiling = headers.get(b"x-millrace-ceiling-nano", b"").decode("latin-1")
    if not _DIGEST.fullmatch(listing) or not re.fullmatch("[0-9]{1,16}", ceiling):
        raise Refusal(400, "invalid_value", "x-millrace-listing or x-millrace-ceiling-nano is invalid.")
    return PurchaseRequest(
        id=headers.get(b"x-request-id", b"").decode("latin-1")[:80],
        market_request=read_market_request(body, kind),
        listing=listing,
        ceiling_nano=int(ceiling),
        continues=headers.get(b"x-millrace-continues") == b"1",
        is_alone=headers.get(b"x-millrace-alone") == b"1",
    )
