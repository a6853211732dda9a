"""Deliver one answer: seal it piece by piece, count what was accepted, sign interim and final receipts."""

import asyncio
import base64
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from market.network.identity import OwnIdentity
from market.protocol.audits.prompts import Shown
from market.protocol.channels.job import Cut, Piece, pack_piece
from market.protocol.channels.statements import Delivery, Promise, Receipt, read_receipt
from market.protocol.channels.transcript import INTERIM_TOKENS, needs_receipt
from market.protocol.counting.answer import AnswerSoFar
from market.protocol.sealing.request import OpenedRequest
from market.seller.accounts import ChannelAccount, ChannelAccounts
from market.seller.carrier import Carrier, Gone, JobRefused
from market.seller.chunks import Chunks, encoded
from market.seller.gateway_request import GatewayRequest
from market.seller.live_listings import SellableModel
from market.seller.proofs import Proof, Proofs
from market.seller.store import RecordedSale

COUNT_EVERY_CHARS = 512
"""Count again after this many new characters: they are hardly ever fewer than 256 tokens."""
_INLINE_CHARS = 20_000
"""Longer texts are counted in a thread."""
WAIT_EVENT = b"event: wait\ndata: -\n\n"


def now_ms() -> int:
    return time.time_ns() // 10**6


@dataclass(frozen=True, slots=True)
class ReceiptSigner:
    """Signs and stores receipts. `ledger_checkpoint` returns the newest block of the marketplace's ledger that we saw.

    `proofs` are kept if there is a marketplace to show them to.
    """

    own: OwnIdentity
    accounts: ChannelAccounts
    ledger_checkpoint: Callable[[], str | None]
    clock_ms: Callable[[], int] = now_ms
    proofs: Proofs | None = None

    async def learn(self, account: ChannelAccount, raws: list[bytes]) -> int:
        """Store what the buyer signed; signed answers need no proof any more. Raises as `ChannelAccounts`."""
        grown = await self.accounts.learn(account, raws)
        if self.proofs is not None:
            self.proofs.review(account.channel)
        return grown

    def check_room(self, promise: Promise, sealed_bytes: int) -> None:
        """Limit unsigned answers to what can be proved. Raises JobRefused."""
        voucher = promise.voucher
        if self.proofs is not None and not self.proofs.has_room(voucher.channel, voucher.lane, sealed_bytes):
            raise JobRefused("full", "Too many answers of this channel are unsigned. Sign for them and try again.")

    def prove(self, delivery: Delivery, account: ChannelAccount, shown: Shown) -> None:
        """Keep the proof of a final receipt's prompt until the buyer has signed for it."""
        if self.proofs is not None and account.credited.backing.is_allocated and delivery.request_nano:
            self.proofs.keep(Proof.of(delivery, shown))


@dataclass(frozen=True, slots=True)
class _Taken:
    """The part of an answer that the carrier has accepted so far, as receipts state it."""

    tokens: int
    transcript: str


class Delivering:
    """Counts only what the carrier has accepted: nothing else is in the receipts or the price."""

    def __init__(
        self,
        receipt_signer: ReceiptSigner,
        account: ChannelAccount,
        promise: Promise,
        order: GatewayRequest,
        sellable: SellableModel,
        opened: OpenedRequest,
        shown: Shown,
    ) -> None:
        self._receipt_signer = receipt_signer
        self._account = account
        self._promise = promise
        self._order = order
        self._sellable = sellable
        self._shown = shown
        self._counting = sellable.counting_of(promise.voucher).remembering()
        self._nonce, self._sealer = opened.answer()
        self._answer = AnswerSoFar(promise.voucher.request)
        created_s = receipt_signer.clock_ms() // 1000
        self._chunks = Chunks(order.kind, f"chatcmpl-{secrets.token_hex(12)}", sellable.sold.market_id, created_s)
        self._part = 0
        self._signed_tokens = 0
        self._looked_chars = 0
        self._uncounted_chunks = 0

    async def begin(self, carrier: Carrier) -> None:
        """Send the first event at once, because tunnels drop answers that do not begin. Raises Gone."""
        await carrier.begin()
        await carrier.send(b"event: nonce\ndata: %s\n\n" % base64.b64encode(self._nonce))

    async def pass_on(self, data: bytes, carrier: Carrier) -> None:
        """Send an event of our own gateway.

        Raises:
            Gone: the buyer hung up.
            ChunkBroken, UpstreamError, StatementInvalid: the answer cannot go on.
        """
        for chunk in self._chunks.read(data):
            piece = Piece("d", encoded(chunk))
            await carrier.send(self._event(piece))
            self._took(chunk)
            await self._sign_some(carrier)

    async def end(self, carrier: Carrier, cut: Cut | None, *, is_gone: bool) -> Delivery:
        """Sign the final receipt: store it first, then send it if the buyer is still connected."""
        if cut is not None and not is_gone:
            is_gone = not await self._try(carrier, self._event(Piece("e", msgspec.json.encode(cut))))
        delivery = await self._receive(await self._taken(), is_final=True)
        if not is_gone:
            await self._try(carrier, self._event(Piece("r", delivery.record.raw), is_last=True))
        return delivery

    def _took(self, chunk: dict[str, Any]) -> None:
        self._answer.add(chunk)
        self._uncounted_chunks += 1

    async def _sign_some(self, carrier: Carrier) -> None:
        """Send an interim receipt after each 256 tokens, which bounds what is unproven."""
        # A chunk is about one token, unless it has more text than that.
        if self._uncounted_chunks < INTERIM_TOKENS and self._answer.chars - self._looked_chars < COUNT_EVERY_CHARS:
            return
        self._looked_chars, self._uncounted_chunks = self._answer.chars, 0
        taken = await self._taken()
        if needs_receipt(self._signed_tokens, taken.tokens):
            delivery = await self._receive(taken, is_final=False)
            await carrier.send(self._event(Piece("r", delivery.record.raw)))

    async def _receive(self, taken: "_Taken", *, is_final: bool) -> Delivery:
        """Sign for everything accepted so far, and store the receipt."""
        terms, voucher = self._account.channel.terms, self._promise.voucher
        receipt = Receipt(
            terms.channel,
            voucher.lane,
            voucher.seq,
            self._part,
            self._promise.digest,
            self._order.prompt_tokens,
            0,
            taken.tokens,
            taken.transcript,
            is_final,
            self._receipt_signer.ledger_checkpoint(),
        )
        name = f"{terms.channel}-{voucher.lane}"
        record = self._receipt_signer.own.say(
            "receipt", name, self._part, receipt, self._receipt_signer.clock_ms()
        )
        delivery = read_receipt(record, self._promise, terms, self._account.credited.standing)
        self._part += 1
        self._signed_tokens = taken.tokens
        if is_final:
            self._receipt_signer.prove(delivery, self._account, self._shown)
        await self._receipt_signer.accounts.keep(
            self._account, delivery, self._sale(delivery) if is_final else None
        )
        return delivery

    def _sale(self, delivery: Delivery) -> RecordedSale:
        voucher = self._promise.voucher
        amount_nano = min(delivery.request_nano, int(voucher.ceiling_nano - voucher.base_nano))
        model, made_ms = self._sellable.sold.market_id, self._receipt_signer.clock_ms()
        return RecordedSale(voucher.channel, voucher.lane, voucher.seq, model, amount_nano, made_ms)

    async def _taken(self) -> "_Taken":
        """Count exactly. Only the last 65,536 characters are counted again; earlier counts are final."""
        if self._answer.chars < _INLINE_CHARS:
            return self._look()
        return await asyncio.to_thread(self._look)

    def _look(self) -> "_Taken":
        tokens = self._counting.delivered(self._answer.choices()).completion_tokens
        return _Taken(tokens, self._answer.transcript())

    def _event(self, piece: Piece, *, is_last: bool = False) -> bytes:
        sealed = self._sealer.seal(pack_piece(piece), is_last=is_last)
        return b"data: %s\n\n" % base64.b64encode(sealed)

    async def _try(self, carrier: Carrier, event: bytes) -> bool:
        try:
            await carrier.send(event)
        except Gone:
            return False
        return True
