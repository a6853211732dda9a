"""The buyer's HTTP application: offers, and answers bought from sellers."""

import asyncio
import os
import re
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs

import msgspec
import psutil

from market.buyer.audits import Audits
from market.buyer.buyer import Buyer
from market.buyer.flow import HAS_GONE
from market.buyer.market_request import read_market_request
from market.buyer.orders import BuyerLimits
from market.buyer.purchase_request import PurchaseRequest
from market.buyer.shop import Shop
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange, HungUp, Message, Receive, Send, until_hung_up
from runtime.workers.health import Health
from runtime.workers.logbook import note

WAIT_S_MAX = 25.0
_LOOK_EVERY_S = 1.0
_KINDS: dict[str, Literal["chat", "completion"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
}
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass
class BuyingApp:
    """Serve the gateway only: the socket is accessible to its user alone."""

    buyer: Buyer
    shop: Shop
    bounds: BuyerLimits
    requests: int = 0
    in_flight: int = 0
    audits: Audits | None = None
    _started: float = field(default_factory=time.monotonic)
    _process: psutil.Process = field(default_factory=psutil.Process)
    _version: int = 0
    _offers: bytes = b""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(receive, send)
        exchange.has_gone = scope.get("state", {}).get(HAS_GONE, exchange.has_gone)
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/healthz":
            await exchange.answer(200, msgspec.json.encode(self.health()))
        elif method == "GET" and path == "/offers":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            await until_hung_up(exchange, self._tell_offers(exchange, query))
        elif method == "GET" and path == "/audits":
            costs = await asyncio.to_thread(self.buyer.unbooked, _named(scope, "after"))
            await exchange.answer(200, msgspec.json.encode(costs))
        elif method == "POST" and path == "/audits/booked":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            await asyncio.to_thread(self.buyer.note_booked, query.get("ids", [""])[0].split(","))
            await exchange.answer(200, b"{}")
        elif method == "GET" and path == "/owed":
            after = _named(scope, "after")
            await exchange.answer(200, msgspec.json.encode(await self.buyer.owed(after)))
        elif method == "POST" and path == "/owed/booked":
            await self.buyer.forget_owed(_named(scope, "ids").split(","))
            await exchange.answer(200, b"{}")
        elif method == "POST" and path in _KINDS:
            await self._admit(exchange, _KINDS[path], dict(scope["headers"]))
        else:
            await exchange.refuse(Refusal(404, "not_found", f"{method} {path} not found."))

    def health(self) -> Health:
        return Health(
            pid=os.getpid(),
            requests=self.requests,
            in_flight=self.in_flight,
            rss_bytes=self._process.memory_info().rss,
            age_s=time.monotonic() - self._started,
            cpu_s=time.process_time(),
        )

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

    async def _admit(
        self, exchange: Exchange, kind: Literal["chat", "completion"], headers: dict[bytes, bytes]
    ) -> None:
        if self.in_flight >= self.bounds.requests_in_flight_max:
            await exchange.refuse(
                Refusal(503, "buyer_busy", "The buyer is at its request limit. Try again later.", retry_after="1")
            )
            return
        self.requests += 1
        self.in_flight += 1
        try:
            body = await exchange.body(self.bounds.body_bytes_max, self.bounds.body_s)
            await until_hung_up(exchange, self._serve(exchange, body, kind, headers))
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except HungUp:
            return
        finally:
            self.in_flight -= 1

    async def _serve(
        self, exchange: Exchange, body: bytes, kind: Literal["chat", "completion"], headers: dict[bytes, bytes]
    ) -> None:
        """Serve one request; every failure becomes an error answer or an error event."""
        try:
            await self.buyer.serve(_request(body, kind, headers), exchange)
        except Refusal as refusal:
            note("refused", status=refusal.status, code=refusal.code)
            await exchange.refuse(refusal)
        except Exception as error:  # noqa: BLE001  the request's edge: a bug ends only this request
            place = traceback.extract_tb(error.__traceback__)[-1]
            note("failed", error=type(error).__name__, place=f"{place.filename}:{place.lineno}")
            await exchange.refuse(Refusal(500, "buyer_failed", "The buyer failed. Try again."))


def _named(scope: Message, field: str) -> str:
    """Return a field of the query; empty if it is missing."""
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get(field, [""])[0]


def _request(body: bytes, kind: Literal["chat", "completion"], headers: dict[bytes, bytes]) -> PurchaseRequest:
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
