"""A seller built from the market's own rooms, over real sockets, which misbehaves as it is told, at any chunk."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import structs

from accounting.metering.tokenizers import Pinned, load_counter
from market.network.challenge import DOMAIN
from market.protocol.channels.admission import ChannelCredit, PricedRequest, refusal
from market.protocol.channels.channel import Channel, delivered, promised
from market.protocol.channels.job import (
    Code,
    Cut,
    JobBody,
    MarketJob,
    Piece,
    pack_piece,
    read_job,
    read_job_body,
    read_receipts,
)
from market.protocol.channels.statements import Delivery, Promise, Receipt, Voucher, read_receipt, read_voucher
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.counting.answer import AnswerSoFar
from market.protocol.counting.token_count import Counting
from market.protocol.identity.lineage import Identities
from market.protocol.listings.listing import Capacity, Datacenter, DataPolicy, Listing
from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record, Saying, open_record, sign
from market.protocol.sealing.agreement import Context, SealingKey
from market.protocol.sealing.request import digest_of, open_request
from market.protocol.sealing.seen import Seen
from market.protocol.sealing.stream import Sealer
from tests.market.parties import id_of, key_of

STANDING = Identities().standing
Fault = Literal[
    "cut",
    "stop",
    "twice",
    "garbage",
    "tamper",
    "event",
    "foreign_receipt",
    "tool",
    "silence",
    "huge",
    "after_finish",
]
"""What goes wrong before a chunk: the connection is cut, the seller stops and says so, a piece comes twice..."""


_WRITTEN: dict[Fault, bytes] = {
    "garbage": b"data: this is no base64!\n\n",
    "event": b"event: message\nid: 7\ndata: {}\n\n",
    "tamper": b"data: " + base64.b64encode(b"\x00" + bytes(80)) + b"\n\n",
    "huge": b"data: " + b"A" * 200_000,
}


@dataclass
class Manners:
    """How it behaves. `fault` happens before chunk number `at`; `inflates` multiplies the counts of receipts."""

    fault: Fault | None = None
    at: int = 0
    inflates: float = 1.0
    refuses: int = 0
    code: str = "full"
    cut_code: Code = "preempted"
    """What it says where it stops."""
    texts: Sequence[str] = ("The ", "mill ", "grinds ", "what ", "the race ", "brings.")
    cached_tokens: int = 0
    tells: bool = False
    """Log probabilities on request, of each chunk as if it were a token."""
    is_deaf: bool = False
    """Does not take receipts after an answer."""
    chunk_s: float = 0.0


@dataclass
class MarketSeller:
    """Serves jobs on 127.0.0.1. `jobs` are those that it has served, with what was inside the seal."""

    name: str
    tokenizer: Pinned
    marketplace: str
    manners: Manners = field(default_factory=Manners)
    listing: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    channels: dict[str, Channel] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    revision: int = 0

    def __post_init__(self) -> None:
        self._key = key_of(self.name)
        self._sealing = SealingKey()
        self._seen = Seen()
        self._counter = load_counter(self.tokenizer)
        self._offered: dict[str, Prices] = {}

    @property
    def id(self) -> str:
        return id_of(self.name)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listed(self, **changed: Any) -> Record:
        """Its listing, signed again."""
        self.revision += 1
        self.listing |= changed
        now_ms = time.time_ns() // 10**6
        body = structs.replace(
            Listing(
                id="mill-1b",
                hugging_face_id="mills/mill-1b",
                weights_sha256="a" * 64,
                tokenizer_sha256=self.tokenizer.sha256.lower(),
                quantization="bf16",
                context_length=8192,
                max_output_length=2048,
                pricing=Prices(Amount(20_000_000), Amount(80_000_000), Amount(5_000_000)),
                datacenters=(Datacenter("DE"),),
                data_policy=DataPolicy(retains_prompts=False, may_publish=False, training=False),
                capacity=Capacity(4, 40),
                sealing_key=self._sealing.public.hex(),
                endpoint=self.url,
                supported_features=("tools",),
            ),
            **self.listing,
        )
        record = sign(Saying("listing", self.id, "mill", self.revision, now_ms, body, now_ms + 300_000), self._key)
        self._offered[record.digest] = body.pricing
        return record

    @property
    def confirmed_nano(self) -> int:
        """What buyers have signed for, over all channels."""
        lanes = [lane for channel in self.channels.values() for lane in channel.lanes.values()]
        return sum(lane.assent.amount_nano for lane in lanes if lane.assent)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.raw.append(body)
        self.headers.append(dict(request.headers))
        if self.manners.refuses:
            self.refused.append(self.manners.code)
            return _refusal(self.manners.refuses, self.manners.code)
        job = read_job(body)
        allocation = open_record(job.backing[0])
        terms, granted = read_allocation(allocation, self.marketplace, STANDING)
        promise = read_voucher(open_record(job.voucher), terms, STANDING)
        self._hear(terms, job.receipts)
        channel = self.channels.setdefault(terms.channel, Channel(terms))
        credit = ChannelCredit(int(granted.limit_nano), allocation.expires_ms)
        priced = PricedRequest(digest_of(job.sealed), 0)
        now_ms = time.time_ns() // 10**6
        if why := refusal(channel, promise, priced, self._offered, credit, open_ceilings={}, now_ms=now_ms):
            self.refused.append(why.reason)
            return _refusal(402, why.reason)
        self.channels[terms.channel] = promised(channel, promise)
        return await self._serve(request, job, terms, promise)

    async def _serve(
        self, request: web.Request, job: MarketJob, terms: ChannelTerms, promise: Promise
    ) -> web.StreamResponse:
        voucher = promise.voucher
        context = Context(terms.channel, voucher.lane, voucher.seq, self.id)
        opened = open_request(job.sealed, self._sealing, context, self._seen)
        job_body = read_job_body(opened.body)
        self.requests.append(job_body.request)
        nonce, sealer = opened.answer()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: nonce\ndata: " + base64.b64encode(nonce) + b"\n\n")
        telling = _Telling(response, sealer)
        answer = AnswerSoFar(voucher.request)
        prompt_tokens = self._counting(voucher).prompt_tokens(job_body.request)
        try:
            await self._speak(telling, answer, job_body)
        except _Stopped:
            receipt = self._receipt(promise, answer, prompt_tokens)
            await telling.say(Piece("e", msgspec.json.encode(Cut(self.manners.cut_code, "the owner needs it"))))
            await telling.say(Piece("r", receipt.record.raw), is_last=True)
            return response
        receipt = self._receipt(promise, answer, prompt_tokens)
        self.channels[terms.channel] = delivered(self.channels[terms.channel], receipt, self.id)
        if self.manners.fault == "foreign_receipt":
            foreign = self._receipt(promise, answer, prompt_tokens, by="mallory")
            await telling.say(Piece("r", foreign.record.raw), is_last=True)
            return response
        await telling.say(Piece("r", receipt.record.raw), is_last=True)
        return response

    async def _speak(self, telling: "_Telling", answer: AnswerSoFar, job_body: JobBody) -> None:
        texts, kind = self.manners.texts, job_body.kind
        for n, text in enumerate((*texts, "")):
            if self.manners.fault and n == self.manners.at:
                await self._misbehave(telling, self.manners.fault)
            if self.manners.chunk_s:
                await asyncio.sleep(self.manners.chunk_s)
            finish = "stop" if n == len(texts) else None
            choice: dict[str, Any] = {"delta": {"content": text}} if kind == "chat" else {"text": text}
            if text and self.manners.tells and job_body.request.get("logprobs", False) is not False:
                choice["logprobs"] = logprobs_of(text, kind)
            chunk = {"id": "evil-id", "choices": [{"index": 0, **choice, "finish_reason": finish}], "usage": None}
            answer.add(chunk)
            await telling.say(Piece("d", json.dumps(chunk).encode()))

    async def _misbehave(self, telling: "_Telling", fault: Fault) -> None:
        response = telling.response
        if fault == "stop":
            raise _Stopped
        if fault == "cut":
            telling.cut()
        elif fault == "twice" and telling.last:
            await response.write(telling.last)
        elif fault in _WRITTEN:
            await response.write(_WRITTEN[fault])
        elif fault == "tool":
            call = {"index": 0, "id": "c", "type": "function", "function": {"name": "rm", "arguments": "{}"}}
            chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
            await telling.say(Piece("d", json.dumps(chunk).encode()))
        elif fault == "after_finish":
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            await telling.say(Piece("d", json.dumps(end).encode()))
        elif fault == "silence":
            await asyncio.sleep(30)

    def _counting(self, voucher: Voucher) -> Counting:
        assert voucher.tokenizer in (None, self._counter.sha256)
        return Counting(self._counter if voucher.tokenizer else None)

    def _receipt(self, promise: Promise, answer: AnswerSoFar, prompt_tokens: int, by: str = "") -> Delivery:
        voucher, inflates = promise.voucher, self.manners.inflates
        tokens = int(self._counting(voucher).delivered(answer.choices()).completion_tokens * inflates)
        counts = int(prompt_tokens * inflates), self.manners.cached_tokens, tokens
        named = voucher.channel, voucher.lane, voucher.seq, 0, promise.digest
        body = Receipt(*named, *counts, answer.transcript(), is_final=True)
        key, issuer = (key_of(by), id_of(by)) if by else (self._key, self.id)
        record = sign(Saying("receipt", issuer, "r", voucher.seq, time.time_ns() // 10**6, body), key)
        terms = self.channels[voucher.channel].terms
        delivery = Delivery(promise, body, record) if by else read_receipt(record, promise, terms, STANDING)
        if not by:
            self.deliveries.append(delivery)
        return delivery

    async def _receipts(self, request: web.Request) -> web.Response:
        if self.manners.is_deaf:
            return web.Response(status=503)
        records = read_receipts(await request.read())
        channel = open_record(records[0]).read("voucher", Voucher).channel
        self._hear(self.channels[channel].terms, records)
        return web.Response()

    def _hear(self, terms: ChannelTerms, raw: list[bytes]) -> None:
        promises: dict[str, Promise] = {}
        channel = self.channels.get(terms.channel, Channel(terms))
        for record in map(open_record, raw):
            if record.kind == "voucher":
                promises[record.digest] = read_voucher(record, terms, STANDING)
                channel = promised(channel, promises[record.digest])
            else:
                promise = promises[record.read("receipt", Receipt).voucher]
                channel = delivered(channel, read_receipt(record, promise, terms, STANDING), record.issuer)
        self.channels[terms.channel] = channel

    async def _challenge(self, request: web.Request) -> web.Response:
        signature = self._key.sign(DOMAIN + bytes.fromhex(request.match_info["nonce"])).hex()
        return web.json_response({"identity": self.id, "signature": signature})

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/market/v1/jobs", self._jobs),
            web.post("/market/v1/receipts", self._receipts),
            web.get("/market/v1/challenge/{nonce}", self._challenge),
        ]


class _Stopped(Exception):
    """The owner needs the machine."""


@dataclass
class _Telling:
    response: web.StreamResponse
    sealer: Sealer
    last: bytes = b""

    async def say(self, piece: Piece, *, is_last: bool = False) -> None:
        sealed = self.sealer.seal(pack_piece(piece), is_last=is_last)
        self.last = b"data: " + base64.b64encode(sealed) + b"\n\n"
        await self.response.write(self.last)

    def cut(self) -> None:
        transport = self.response._req.transport if self.response._req else None
        assert transport
        transport.abort()
        raise ConnectionResetError


def logprobs_of(text: str, kind: str) -> dict[str, Any]:
    """One token in OpenAI's form, with an extra field that must not pass."""
    if kind == "completion":
        return {"tokens": [text], "token_logprobs": [-0.25], "top_logprobs": [{text: -0.25}], "text_offset": [0]}
    other = {"token": "wind", "logprob": -2.5, "bytes": None}
    return {"content": [{"token": text, "logprob": -0.25, "bytes": [1], "top_logprobs": [other], "spy": 1}]}


def _refusal(status: int, code: str) -> web.Response:
    headers = {"retry-after": "2"} if status == 429 else {}
    return web.json_response({"error": {"code": code, "message": "<script>"}}, status=status, headers=headers)


@asynccontextmanager
async def served(routes: Callable[[], list[web.RouteDef]]) -> AsyncIterator[int]:
    """The routes on a port of 127.0.0.1."""
    app = web.Application(client_max_size=2**26)
    app.add_routes(routes())
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def selling(name: str, tokenizer: Pinned, marketplace: str, **manners: Any) -> AsyncIterator[MarketSeller]:
    seller = MarketSeller(name, tokenizer, marketplace, Manners(**manners))
    async with served(seller.routes) as port:
        seller.port = port
        yield seller


def most_nano(prices: Prices, prompt_tokens: int, tokens: int) -> int:
    return cost_nano(prices, prompt_tokens, 0, tokens)
