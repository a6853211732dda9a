"""One job at one seller: send, receive, count and sign. Every purchase must be settled, however it ended."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from accounting.metering.delivered import Delivered
from market.buyer.channels import ChannelState, Pseudonym
from market.buyer.chunk_splitter import PART_CHARS
from market.buyer.chunks import Chunks
from market.buyer.errors import Garbled, SellerBusy, SellerFailed, SellerRefuses
from market.buyer.market_request import MarketRequest
from market.buyer.orders import BuyerLimits
from market.buyer.purchasable_listing import PurchasableListing
from market.buyer.receipts import Counted, receipt_for
from market.buyer.response_decoder import Flag, ResponseDecoder
from market.buyer.shielded import shielded
from market.buyer.store import BuyingStore, EndedJob
from market.buyer.vouchers import Vouched
from market.network.outbound import Outbound, Streamed, Unreachable
from market.protocol.channels.job import pack_receipts
from market.protocol.channels.statements import Delivery
from market.protocol.counting.answer import AnswerSoFar, transcript_of
from market.protocol.counting.token_count import Counting
from market.protocol.records.key_status import StandingOf
from runtime.workers.logbook import note

Json = dict[str, Any]

PROGRESS_CHARS = 1024
"""Characters, about 256 tokens. Progress is written down when at least this much is new..."""
PROGRESS_PARTS = 4
"""...or this fraction (one in four) of the text, because each count covers the whole text."""
TOKEN_CHARS_MAX = 256
"""Only a few tokens, made of spaces, are longer in any tokenizer."""
UNSAID_TOKENS_MAX = 64
TOGETHER_MAX = 16
"""Pass on at most this many chunks at once, or as much text as one chunk may have."""
_OK, _TOO_MANY = 200, 429
_REFUSAL_BYTES_MAX = 4096
_TELL_S = 10.0
_CODE = re.compile("[a-z_]{1,32}")
_PACKED = {"content-type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class PurchaseServices:
    """Services that all purchases share."""

    outbound: Outbound
    store: BuyingStore
    standing: StandingOf
    bounds: BuyerLimits


@dataclass(frozen=True, slots=True)
class Bought:
    """A job's result by our own count; all zero, even the prompt, if nothing was delivered."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    amount_nano: int = 0
    text: str = ""
    is_plain: bool = True
    """True if the text is the whole answer, without reasoning or tool calls."""
    flags: tuple[Flag, ...] = ()


class Purchase:
    """One job: `chunks` yields the answer as it arrives; `settle` signs for what was delivered, no more."""

    def __init__(
        self,
        means: PurchaseServices,
        offering: PurchasableListing,
        market_request: MarketRequest,
        state: ChannelState,
        pseudonym: Pseudonym,
        vouched: Vouched,
        counting: Counting,
        prompt_tokens: int,
    ) -> None:
        self._means = means
        self._offering = offering
        self._state = state
        self._pseudonym = pseudonym
        self._vouched = vouched
        self._counting = counting.remembering()
        self._tokens_max = market_request.tokens_max * market_request.choices
        self.prompt_tokens = prompt_tokens
        self.ttft_s: float | None = None
        self._progress: asyncio.Task[None] | None = None
        self._progress_chars = PROGRESS_CHARS
        self._hearing = ResponseDecoder(
            vouched.sealed,
            vouched.promise,
            state.terms,
            means.standing,
            Chunks(
                is_chat=market_request.kind == "chat",
                choices=market_request.choices,
                tools=market_request.tools,
                logprob_tokens_max=market_request.logprob_tokens_max,
            ),
            AnswerSoFar(vouched.sealed.digest),
            chars_max=(self._tokens_max + UNSAID_TOKENS_MAX) * TOKEN_CHARS_MAX,
        )

    async def chunks(self) -> AsyncGenerator[list[list[Json]], None]:
        """Yield the choices of each chunk, rebuilt by us.

        Chunks that arrive together come together, up to a bound.

        Raises:
            SellerFailed: the seller did not answer, or not completely. What came before counts.
        """
        # Wait for the job's row even if cancelled: `settle` signs only what is stored.
        await shielded(asyncio.to_thread(self._means.store.begin, self._vouched.begun))
        bounds, url = self._means.bounds, f"{self._offering.base_url}/market/v1/jobs"
        began_s = time.monotonic()
        try:
            async with self._means.outbound.stream(
                url,
                self._vouched.packed,
                headers=_PACKED,
                first_byte_s=bounds.first_byte_s,
                gap_s=bounds.silence_s,
            ) as streamed:
                if streamed.status != _OK:
                    raise await _refusal(streamed)
                self._state.note_receipts_taken(self._vouched.receipt_numbers)
                async for data in streamed.events:
                    for chunks in self._heard(data):
                        if self.ttft_s is None:
                            self.ttft_s = time.monotonic() - began_s
                        yield chunks
                    self._keep_progress()
                    if self._hearing.has_ended:
                        break
                    self._check_clock(time.monotonic() - began_s)
        except Unreachable as error:
            raise SellerFailed(error.reason, "broke_off") from None
        self._hearing.check_end()

    async def settle(self) -> Bought:
        """Count what came, sign for it and store that."""
        if self._progress:
            await asyncio.gather(self._progress, return_exceptions=True)
        bought, delivery = await asyncio.to_thread(self._signed)
        self._state.end(delivery)
        claim = self._hearing.claim
        ended = EndedJob(
            delivery.record.raw, claim.record.raw if claim else None, bought.amount_nano, ",".join(bought.flags)
        )
        await asyncio.to_thread(self._means.store.end, self._vouched.begun, ended)
        return bought

    async def tell(self) -> None:
        """Send the seller our receipt; if that fails, its next job includes it."""
        begun = self._vouched.begun
        if self._state.unsent_receipts.get(begun.lane, (0,))[0] == begun.seq:
            try:
                await tell_of(self._means, self._offering.base_url, self._state, begun.lane)
            except SQLAlchemyError as error:
                note("receipt_not_noted", error=type(error).__name__)

    def _heard(self, data: bytes) -> Iterator[list[list[Json]]]:
        """Yield chunks in groups, as each send costs the same; yield everything received before raising."""
        together: list[list[Json]] = []
        answer, since_chars = self._hearing.answer, self._hearing.answer.chars
        try:
            for choices in self._hearing.feed(data):
                together.append(choices)
                if len(together) == TOGETHER_MAX or answer.chars - since_chars >= PART_CHARS:
                    yield together
                    together, since_chars = [], answer.chars
        except Garbled:
            if together:
                yield together
            raise
        if together:
            yield together

    def _check_clock(self, gone_s: float) -> None:
        bounds = self._means.bounds
        if gone_s > bounds.total_s or (self.ttft_s is None and gone_s > bounds.first_token_s):
            raise SellerFailed(f"it was not done after {gone_s:.0f} s", "slow")

    def _signed(self) -> tuple[Bought, Delivery]:
        """Count, hash and check the whole answer; slow, call in a thread."""
        answer, promise = self._hearing.answer, self._vouched.promise
        choices = answer.choices()
        tokens, claim = self._tokens(choices), self._hearing.claim
        # Tokens that the seller had cached are cheaper. Only the seller knows, and saying so only lowers its pay.
        cached = min(claim.receipt.cached_tokens, self.prompt_tokens) if claim else 0
        prompt, cached = (self.prompt_tokens, cached) if tokens else (0, 0)
        counted = Counted(prompt, cached, tokens, answer.transcript())
        delivery = receipt_for(counted, promise, self._state.terms, self._pseudonym, self._means.standing)
        amount_nano = delivery.amount_nano - int(promise.voucher.base_nano)
        flags = self._hearing.flags(delivery.amount_nano + delivery.tolerance_nano)
        first = choices[0] if choices else None
        is_plain = not first or not (first.reasoning or first.calls)
        text = first.content if first else ""
        return Bought(prompt, cached, tokens, amount_nano, text, is_plain, flags), delivery

    def _tokens(self, choices: Iterable[Delivered]) -> int:
        """Return the tokens to pay for. Counted by bytes, an answer may have more than the model was asked for."""
        return min(self._counting.delivered(choices).completion_tokens, self._tokens_max)

    def _keep_progress(self) -> None:
        """Count and store what has come, in steps, so that the next process can sign for it after a crash."""
        answer = self._hearing.answer
        if answer.chars < self._progress_chars or (self._progress and not self._progress.done()):
            return
        self._progress_chars = answer.chars + max(PROGRESS_CHARS, answer.chars // PROGRESS_PARTS)
        work = asyncio.to_thread(self._write_progress, answer.by_index())
        self._progress = asyncio.create_task(work, name="progress")

    def _write_progress(self, answers: dict[int, Delivered]) -> None:
        tokens = self._tokens(answers.values())
        transcript = transcript_of(self._vouched.sealed.digest, answers)
        counted = Counted(self.prompt_tokens if tokens else 0, 0, tokens, transcript)
        self._means.store.note_progress(self._vouched.begun, counted.packed())


async def tell_of(means: PurchaseServices, base_url: str, state: ChannelState, lane: int) -> bool:
    """Send a seller a lane's newest receipt that it may lack; return whether the seller took it."""
    seq, receipt, voucher = state.unsent_receipts[lane]
    try:
        url = f"{base_url}/market/v1/receipts"
        reply = await means.outbound.ask(
            url, pack_receipts([voucher, receipt]), headers=_PACKED, timeout_s=_TELL_S
        )
    except Unreachable:
        return False
    if reply.status == _OK:
        await asyncio.to_thread(means.store.tell, state.terms.channel, [(lane, seq)])
        state.note_receipts_taken([(lane, seq)])
    return reply.status == _OK


async def _refusal(streamed: Streamed) -> SellerFailed:
    """Return the error for a seller's refusal, without the seller's own text, which we do not trust."""
    body = b""
    try:
        async for data in streamed.events:
            body += data
            if len(body) > _REFUSAL_BYTES_MAX:
                break
        code = json.loads(body[:_REFUSAL_BYTES_MAX])["error"]["code"]
    except (Unreachable, ValueError, LookupError, TypeError, RecursionError):
        code = ""
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        code = "refused"
    if streamed.status == _TOO_MANY:
        return SellerBusy(f"it has no room: {code}", streamed.retry_after_s or 1)
    return SellerRefuses(f"it answered {streamed.status}: {code}", code)
