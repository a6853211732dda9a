"""The market lane: buys from third parties' idle machines through the buyer process's unix socket."""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from accounting.metering.prices import PricedModel
from accounting.metering.tokenizers import Pinned
from accounting.money import Price
from gateway.dialects.openai import GENERATES, CompletionRequest
from gateway.errors import LaneBusy, LaneUnreachable
from gateway.lanes.aliases import Aliases, names_with, offers_of
from gateway.lanes.allowance import allowance_of
from gateway.lanes.base import Answer, Call, Offer
from gateway.lanes.bounded_body import paid_body
from gateway.lanes.features import Feature
from gateway.lanes.market.draw import drawn, excluded
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.settings import LaneName
from market.protocol.offers import Offers, OnOffer
from market.settings.buyer import MarketSettings
from runtime.errors import LaneBrokeOff, LaneFailed
from runtime.http.client import Client
from runtime.workers.supervisor import Worker, WorkerUnavailable
from runtime.workers.worker_process import ask_worker

log = structlog.get_logger(__name__)

NotePrices = Callable[[Mapping[str, PricedModel]], None]
"""Records prices by name; writes to the database. Raises SQLAlchemyError."""

WAIT_S = 20.0
"""How long to wait for the buyer's next change."""
_PAUSE_S = 1.0
_BUYER_S = 10.0
_OFFERS_BYTES_MAX = 16 * 2**20
_PRICES_MAX = 4096
# The buyer process enforces its own timeouts. These outer timeouts are longer, because it may try several sellers.
_LATE_S = 60.0
_BEGINS_S = 300.0
_GAP_S = 240.0
# Fields about the caller, which are never sent to the market.
_PERSONAL = ("user", "metadata", "safety_identifier", "prompt_cache_key", "store", "service_tier")


@dataclass(frozen=True, slots=True)
class _Stall:
    """The listings of one model: the rows, and the offer of each by its digest."""

    rows: list[OnOffer] = field(default_factory=list)
    offers: dict[str, Offer] = field(default_factory=dict)


class MarketLane:
    """Keeps the buyer's latest listings. Prices are recorded before anything is offered at them."""

    name: LaneName = "market"

    def __init__(
        self,
        settings: MarketSettings,
        buyer: Worker,
        note_prices: NotePrices,
        named: Mapping[str, Pinned],
        chance: Callable[[], float] = random.random,
        aliases: Callable[[], Aliases] = dict,
    ) -> None:
        """`aliases` returns what names currently route to; `chance` returns random numbers from 0 to 1.

        `named` are the admin's tokenizers by SHA-256.
        """
        self._settings = settings
        self._aliases = aliases
        self._buyer = buyer
        self._note_prices = note_prices
        self._named = named
        self._chance = chance
        self._client = Client()
        self._stalls: dict[str, _Stall] = {}
        self._told = Offers(0)
        self._tokenizers: dict[str, str | None] = {}
        self._noted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the buyer and follow its changes. Returns immediately."""
        self._task = asyncio.create_task(self._listen(), name="market-offers")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()
        await self._buyer.stop()

    def models(self) -> list[str]:
        return names_with(self._aliases(), self._stalls.keys())

    def offers(self, model: str) -> list[Offer]:
        return offers_of(self._aliases(), model, self._own_offers)

    def _own_offers(self, model: str) -> list[Offer]:
        """Return the drawn listing and its successors; then listings that cannot be asked now."""
        stall = self._stalls.get(model)
        if stall is None:
            return []
        rows = drawn(stall.rows, self._chance)
        found = [_placed(stall.offers[row.listing], place) for place, row in enumerate(rows, 1)]
        for listing, why in excluded(stall.rows).items():
            found.append(_down(stall.offers[listing], why))
        return found

    def tokenizer_of(self, name: str) -> Pinned | None:
        """The tokenizer that counts broken answers bought by a listing: `Offer.counted_as` names it."""
        sha256 = self._tokenizers.get(name.removeprefix("market/"))
        return self._named.get(sha256) if sha256 else None

    async def open(self, call: Call, offer: Offer, _wait_s: float = math.inf) -> Answer:
        """Returns when the first bytes of a seller's answer are there.

        Raises LaneBusy while the buyer process is not available, and other kinds of LaneFailed if it fails.
        """
        body = _body(call, offer)
        stack = AsyncExitStack()
        try:
            lease = await stack.enter_async_context(self._buyer.acquire())
        except WorkerUnavailable as error:
            raise LaneBusy(str(error), retry_after_s=math.ceil(error.retry_after_s)) from None
        try:
            return await relay(self._upstream(str(lease.socket_path), call, offer), call, body, stack)
        except (LaneUnreachable, LaneBrokeOff):
            await self._buyer.report_unreachable(lease)
            raise

    def _upstream(self, socket_path: str, call: Call, offer: Offer) -> Upstream:
        in_all_s = self._settings.total_s + _LATE_S
        return Upstream(
            name="market",
            client=self._client,
            base_url="http://buyer/v1",
            headers=_headers(call, offer),
            first_byte_s=_BEGINS_S if call.generation.is_stream else in_all_s,
            silence_s=_GAP_S,
            total_s=in_all_s,
            is_paid=True,
            is_ours=True,
            socket_path=socket_path,
        )

    @property
    def told(self) -> Offers:
        """Return everything that the buyer last reported."""
        return self._told

    async def ask_buyer(self, method: str, target: str) -> bytes:
        """Ask the buyer process. Raises OSError, EOFError, TimeoutError, WorkerUnavailable."""
        async with self._buyer.acquire() as lease, asyncio.timeout(_BUYER_S):
            return await ask_worker(lease.socket_path, target, _OFFERS_BYTES_MAX, method)

    async def _listen(self) -> None:
        """Follow every change. While the buyer is unreachable, the lane has no offers."""
        version = -1
        while True:
            try:
                offers = await self._ask(version)
                if offers.version != version:
                    await self._take(offers)
                    version = offers.version
            except (OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable, SQLAlchemyError) as error:
                log.warning("market.offers_unknown", reason=type(error).__name__)
                self._stalls, self._told, version = {}, Offers(0), -1
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, version: int) -> Offers:
        async with self._buyer.acquire() as lease, asyncio.timeout(WAIT_S + _PAUSE_S * 10):
            target = f"/offers?version={version}&wait_s={WAIT_S:g}"
            body = await ask_worker(lease.socket_path, target, _OFFERS_BYTES_MAX)
        return msgspec.json.decode(body, type=Offers)

    async def _take(self, offers: Offers) -> None:
        stalls: dict[str, _Stall] = {}
        new: dict[str, PricedModel] = {}
        for row in offers.offers:
            offer = _offer(row)
            stall = stalls.setdefault(row.model, _Stall())
            stall.rows.append(row)
            stall.offers[row.listing] = offer
            self._tokenizers[row.listing] = row.tokenizer
            if offer.price and offer.price.id not in self._noted:
                new[f"{row.model}@{row.seller[:12]}"] = offer.price
        if new:
            await asyncio.to_thread(self._note_prices, new)
            if len(self._noted) > _PRICES_MAX:
                self._noted.clear()
            self._noted |= {price.id for price in new.values()}
        # Listings are signed again every few minutes. Requests about the previous ones come a little longer.
        for listing in list(self._tokenizers)[:-_PRICES_MAX]:
            del self._tokenizers[listing]
        self._stalls, self._told = stalls, offers


def _offer(row: OnOffer) -> Offer:
    price = PricedModel(
        "market",
        row.model,
        row.listing,
        Price(row.prompt_nano, row.cached_nano, row.completion_nano),
        "market",
        max_input_tokens=row.context_tokens,
        max_output_tokens=row.output_tokens,
    )
    features: list[Feature] = []
    if row.has_tools:
        features.append("tools")
    if row.has_schemas:
        features.append("json")
    if row.has_logprobs:
        features.append("logprobs")
    return Offer(
        "market",
        row.seller[:12],
        row.model,
        features=frozenset(features),
        kinds=GENERATES,
        context_tokens=row.context_tokens,
        price=price,
        clearance=row.clearance,
        region=row.region,
        quantization=row.quantization,
        keeps_data=row.keeps_data,
    )


def _placed(offer: Offer, place: int) -> Offer:
    return replace(offer, place=place)


def _down(offer: Offer, why: str) -> Offer:
    return replace(offer, state="down", note=why)


def _body(call: Call, offer: Offer) -> bytes:
    """The body for the buyer, which passes known fields on to sellers. Raises RequestInvalid, LaneFailed."""
    request = call.generation
    if isinstance(request, CompletionRequest) and (request.echo or not isinstance(request.prompt, str)):
        raise LaneFailed("a completion on the market needs one text as its prompt, without echo")
    return paid_body(call, offer, _PERSONAL)


def _headers(call: Call, offer: Offer) -> dict[str, str]:
    """The headers for the buyer: the listing, the maximum price, and who may continue half of an answer."""
    assert offer.price
    allowance = allowance_of(call, offer)
    assert allowance
    headers = {
        "x-millrace-listing": offer.price.source,
        "x-millrace-ceiling-nano": str(int(allowance.amount_nano(allowance.tokens_max))),
    }
    extras, wished = call.request.millrace, call.request.provider
    if extras and extras.continue_on_failure:
        headers["x-millrace-continues"] = "1"
    if wished and (wished.only or wished.ignore or wished.order or wished.allow_fallbacks is False):
        # The buyer process does not know which sellers the caller accepts.
        headers["x-millrace-alone"] = "1"
    return headers
