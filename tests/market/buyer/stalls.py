"""A buyer inside the test's process, a marketplace, and sellers; requests come as the gateway sends them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.metering.delivered import Delivered
from accounting.metering.tokenizers import Pinned, load_counter
from market.buyer.app import BuyingApp
from market.buyer.orders import BuyerLimits, Orders
from market.buyer.server import opened
from market.network.record_keeper import RecordKeeper
from market.protocol.counting.token_count import Counting
from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record
from runtime.workers.exchange import Message
from tests.accounting.tokenizer import make_tokenizer
from tests.fakes.market_seller import MarketSeller, selling
from tests.fakes.marketplace import KEY, FakeMarketplace, clearing
from tests.market.seller.shop import until

CEILING_NANO = 10**9
ANSWER = "The mill grinds what the race brings."
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "What does the mill do?"}]}


def due_nano(seller: MarketSeller, text: str, request: dict[str, Any] | None = None) -> int:
    """What a text comes to by the canonical count; nothing for nothing, not even the prompt."""
    counting = Counting(load_counter(seller.tokenizer))
    tokens = counting.delivered([Delivered(text)]).completion_tokens
    prices = seller.listing.get("pricing") or Prices(Amount(20_000_000), Amount(80_000_000), Amount(5_000_000))
    return cost_nano(prices, counting.prompt_tokens(request or QUESTION), 0, tokens)


@dataclass
class Bill:
    """What the gateway got of one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        parts = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n") if part]
        return [json.loads(part) for part in parts if part != b"[DONE]"]

    @property
    def is_whole(self) -> bool:
        return self.body.endswith(b"data: [DONE]\n\n")

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in event.get("choices", ())]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)

    @property
    def usage(self) -> dict[str, Any]:
        return next(event["usage"] for event in self.events if event.get("usage"))

    @property
    def cost_nano(self) -> int:
        return int(self.usage["cost_nano"])

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if "error" in event), None)


@dataclass
class Stalls:
    app: BuyingApp
    marketplace: FakeMarketplace
    sellers: list[MarketSeller] = field(default_factory=list)
    requests: int = 0

    async def ask(
        self,
        seller: MarketSeller,
        *,
        stream: bool = True,
        headers: dict[str, str] | None = None,
        path: str = "/v1/chat/completions",
        listing: str = "",
        **fields: Any,
    ) -> Bill:
        """Buy from this seller, as the lane does."""
        listing = listing or self.listing_of(seller)
        return await self.ask_for(listing, stream=stream, headers=headers, path=path, **fields)

    async def ask_for(
        self,
        listing: str,
        *,
        stream: bool = True,
        headers: dict[str, str] | None = None,
        path: str = "/v1/chat/completions",
        **fields: Any,
    ) -> Bill:
        """Buy by this listing."""
        body: dict[str, Any] = {"model": "mill-1b", "max_tokens": 64, "stream": stream}
        if path.endswith("chat/completions"):
            body |= QUESTION
        if stream:
            body["stream_options"] = {"include_usage": True}
        self.requests += 1
        all_headers = {
            "x-request-id": f"req-{self.requests}",
            "x-millrace-listing": listing,
            "x-millrace-ceiling-nano": str(CEILING_NANO),
            **(headers or {}),
        }
        return await send_request(self.app, "POST", path, json.dumps(body | fields).encode(), all_headers)

    @property
    def owed_nano(self) -> int:
        """What we have signed for, of the request that was bought last."""
        owed = self.app.buyer._means.store.owed(f"req-{self.requests}"[:-1], (), 1000, self.app.shop._now_ms())
        return sum(each.amount_nano for each in owed if each.id == f"req-{self.requests}")

    def nothing_is_open(self) -> bool:
        """No lane is in use, no credit reserved for what has ended."""
        states = [state for states in self.app.buyer._credit._states.values() for state in states]
        return not any(state.open_ceilings for state in states) and self.app.in_flight == 0

    async def until_told(self, seller: MarketSeller, nano: int) -> None:
        """Receipts travel behind the answer's back."""
        async with asyncio.timeout(60):
            while seller.confirmed_nano != nano:
                await asyncio.sleep(0.01)

    def listing_of(self, seller: MarketSeller) -> str:
        offerings, _ = self.app.shop.offerings()
        return next(offering.record.digest for offering in offerings if offering.seller == seller.id)


def learn(app: BuyingApp, records: list[Record]) -> None:
    """As gossip would tell it a little later."""
    keeper = app.shop._keeper
    assert isinstance(keeper, RecordKeeper)
    keeper.add([each.raw for each in records], "marketplace")
    # Listings are read to the second.
    keeper._view.offers_s = -1


async def send_request(
    app: BuyingApp, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Bill:
    """One exchange over ASGI."""
    sent: list[Message] = []
    came = [{"type": "http.request", "body": body, "more_body": False}]
    forever = asyncio.Event()

    async def receive() -> Message:
        if came:
            return came.pop()
        await forever.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    fields = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"method": method, "path": path, "query_string": query.encode(), "headers": fields}
    await app(scope, receive, send)
    begun = sent[0]
    head = {name.decode(): value.decode() for name, value in begun["headers"]}
    return Bill(begun["status"], head, b"".join(message.get("body", b"") for message in sent[1:]))


@asynccontextmanager
async def stalls(folder: Path, *manners: dict[str, Any], **orders: Any) -> AsyncIterator[Stalls]:
    """A seller for each of `manners`, named ann, bob, cid; all are listed and known."""
    tokenizer: Pinned = make_tokenizer(folder)
    async with AsyncExitStack() as stack:
        marketplace = await stack.enter_async_context(clearing())
        sellers = [
            await stack.enter_async_context(selling(name, tokenizer, marketplace.id, **each))
            for name, each in zip(("ann", "bob", "cid", "dan"), manners, strict=False)
        ]
        marketplace.records = [seller.listed() for seller in sellers]
        sha256 = tokenizer.sha256.lower()
        marketplace.tokenizers = [sha256]
        given: dict[str, Any] = {
            "buy_for": ("public",),
            "marketplace_url": marketplace.url,
            "marketplace_key": KEY,
            "allows_loopback": True,
            "bounds": BuyerLimits(first_byte_s=10, silence_s=3),
            "tokenizers": {sha256: str(tokenizer.path)},
        }
        app = await stack.enter_async_context(opened(Orders("", str(folder / "market"), **(given | orders))))
        await until(app.buyer._tokenizers.settled)
        learn(app, marketplace.records)
        yield Stalls(app, marketplace, sellers)
