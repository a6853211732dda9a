"""A buyer of the market, made of its rooms alone: it promises, seals, opens, counts and signs for itself."""

import base64
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from accounting.metering.tokenizers import load_counter
from market.protocol.channels.channel import Channel, delivered, promised
from market.protocol.channels.job import (
    Cut,
    JobBody,
    MarketJob,
    Piece,
    pack_job,
    pack_job_body,
    pack_receipts,
    read_cut,
    read_piece,
)
from market.protocol.channels.next_voucher import VoucherOrder, next_voucher
from market.protocol.channels.statements import Delivery, Promise, Receipt, Voucher, read_receipt, read_voucher
from market.protocol.channels.terms import Allocation, ChannelTerms, read_allocation
from market.protocol.counting.answer import AnswerSoFar
from market.protocol.counting.token_count import Counting
from market.protocol.listings.listing import Listing, read_listing
from market.protocol.listings.prices import cost_nano
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record, open_record
from market.protocol.sealing.agreement import Context
from market.protocol.sealing.request import SealedRequest, seal_request
from market.protocol.sealing.stream import Opener
from tests.accounting.tokenizer import pinned
from tests.clusters import DEMO_MODEL
from tests.market.parties import STANDING, id_of, signed_record

LIMIT_NANO = 10**9
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
Json = dict[str, Any]


def plain_http() -> httpx.AsyncClient:
    """A client that loads no certificates, which would take longer than the test."""
    return httpx.AsyncClient(trust_env=False, timeout=60, verify=_NO_CERTIFICATES)


DEMO = pinned(DEMO_MODEL / "tokenizer.json")
COUNTING = Counting(load_counter(DEMO))


def asking(**more: Any) -> Json:
    return {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 600, **more}


@dataclass
class Purchase:
    """One request from the voucher to the buyer's receipt; `pieces` are what has come of the answer."""

    promise: Promise
    request: SealedRequest
    job: MarketJob
    prompt_tokens: int
    answer: AnswerSoFar
    status: int = 0
    error: Json = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    waits: int = 0
    has_ended: bool = False
    _opener: Opener | None = None

    @property
    def text(self) -> str:
        return "".join(each.content for each in self.answer.choices())

    @property
    def cut(self) -> Cut | None:
        return next((read_cut(piece) for piece in self.pieces if piece.kind == "e"), None)

    @property
    def receipts(self) -> list[bytes]:
        return [piece.content for piece in self.pieces if piece.kind == "r"]

    @property
    def tokens(self) -> int:
        return COUNTING.delivered(self.answer.choices()).completion_tokens

    def take(self, event: str) -> Piece | None:
        """One whole event; returns the piece that it brought."""
        name, data = "", ""
        for line in event.splitlines():
            label, _, value = line.partition(": ")
            name, data = (value, data) if label == "event" else (name, value)
        if name == "wait":
            self.waits += 1
            return None
        content = base64.b64decode(data, validate=True)
        if name == "nonce":
            self._opener = self.request.answer(content)
            return None
        assert self._opener
        piece = read_piece(self._opener.open(content))
        self.has_ended = self._opener.has_ended
        self.pieces.append(piece)
        if piece.kind == "d":
            self.answer.add(json.loads(piece.content))
        return piece


@dataclass
class Buyer:
    """Buys at one seller on one channel."""

    endpoint: str
    listing_record: Record
    seller: str
    name: str = "buyer"
    skew_ms: int = 0
    limit_nano: int = LIMIT_NANO
    made_ms: int = 0
    last_seq: int = 0

    def __post_init__(self) -> None:
        self.listing: Listing = read_listing(self.listing_record, allows_loopback=True)
        allocation = Allocation(id_of(self.name), self.seller, Amount(self.limit_nano), "hold:a1", 1)
        record = signed_record("marketplace", "allocation", allocation, made_ms=self.made_ms, lasts_ms=86_400_000)
        self.rest_on([record], read_allocation(record, id_of("marketplace"), STANDING)[0])

    def rest_on(self, backing: list[Record], terms: ChannelTerms) -> None:
        """Begin a channel on this."""
        self.backing, self.terms = backing, terms
        self.channel = Channel(terms)
        self.receipts: list[bytes] = []

    def order(
        self,
        body: Json | None = None,
        *,
        lane: int = 0,
        most_tokens: int = 600,
        prompt_tokens: int | None = None,
        **given: Any,
    ) -> Purchase:
        """Sign and seal a request; `given` takes the place of members of the voucher."""
        body = asking() if body is None else body
        if prompt_tokens is None:
            prompt_tokens = COUNTING.prompt_tokens(body)
        self.last_seq += 1
        context = Context(self.terms.channel, lane, self.last_seq, self.seller)
        sealed = seal_request(
            pack_job_body(JobBody("completion" if "prompt" in body else "chat", body)),
            bytes.fromhex(self.listing.sealing_key),
            context,
        )
        most_nano = cost_nano(self.listing.pricing, prompt_tokens, 0, most_tokens)
        named = self.listing_record.digest, self.listing.pricing
        order = VoucherOrder(sealed.digest, *named, most_nano, self.listing.tokenizer_sha256)
        voucher = next_voucher(
            self.channel, lane, self.last_seq - 1, order, limit_nano=self.limit_nano, open_ceilings={}
        )
        assert voucher
        return self.sign(voucher, sealed, prompt_tokens, **given)

    def sign(self, voucher: Voucher, sealed: SealedRequest, prompt_tokens: int, **given: Any) -> Purchase:
        changed = msgspec.structs.replace(voucher, **given)
        record = signed_record(
            self.name, "voucher", changed, "v", changed.seq, made_ms=self.made_ms + self.skew_ms
        )
        promise = read_voucher(record, self.terms, STANDING)
        self.channel = promised(self.channel, promise)
        job = MarketJob(record.raw, [each.raw for each in self.backing], sealed.sealed, [], self.receipts[-32:])
        return Purchase(promise, sealed, job, prompt_tokens, AnswerSoFar(changed.request))

    async def buy(self, purchase: Purchase) -> Purchase:
        """Send it, read all of the answer, and sign for it."""
        async for _ in self.stream(purchase):
            pass
        if purchase.status == 200:
            self.receive(purchase)
        return purchase

    async def stream(self, purchase: Purchase) -> AsyncGenerator[Piece | None]:
        """Yield each event with its piece; leaving early hangs up."""
        async with (
            plain_http() as http,
            http.stream("POST", f"{self.endpoint}/market/v1/jobs", content=pack_job(purchase.job)) as response,
        ):
            purchase.status = response.status_code
            if response.status_code != 200:
                purchase.error = json.loads(await response.aread())["error"]
                return
            async for event in events(response):
                yield purchase.take(event)

    def receive(self, purchase: Purchase) -> Delivery:
        """Sign for what has come."""
        voucher = purchase.promise.voucher
        receipt = Receipt(
            self.terms.channel,
            voucher.lane,
            voucher.seq,
            0,
            purchase.promise.digest,
            purchase.prompt_tokens,
            0,
            purchase.tokens,
            purchase.answer.transcript(),
            is_final=True,
        )
        record = signed_record(
            self.name, "receipt", receipt, "r", voucher.seq, made_ms=self.made_ms + self.skew_ms
        )
        delivery = read_receipt(record, purchase.promise, self.terms, STANDING)
        self.channel = delivered(self.channel, delivery, self.terms.buyer)
        self.receipts += [purchase.promise.record.raw, record.raw]
        return delivery

    def sellers_word(self, purchase: Purchase) -> list[Delivery]:
        """The seller's receipts that came with the answer, each checked."""
        opened = [open_record(raw) for raw in purchase.receipts]
        return [read_receipt(record, purchase.promise, self.terms, STANDING) for record in opened]

    async def hand_in(self) -> httpx.Response:
        async with plain_http() as http:
            return await http.post(
                f"{self.endpoint}/market/v1/receipts", content=pack_receipts(self.receipts[-32:])
            )


async def events(response: httpx.Response) -> AsyncIterator[str]:
    held = ""
    async for text in response.aiter_text():
        held += text
        *whole, held = held.split("\n\n")
        for event in whole:
            yield event
    assert not held
