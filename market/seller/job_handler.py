"""Serve one job from its bytes to its final receipt.

Read it top to bottom: every reason to refuse is checked before a model is used.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import msgspec
import structlog
from msgspec import Struct

from market.errors import MarketError, SealBroken, StatementInvalid
from market.protocol.audits.prompts import Shown
from market.protocol.channels.admission import PricedRequest, refusal
from market.protocol.channels.job import Code, MarketJob, read_job, read_job_body
from market.protocol.channels.statements import Promise, read_voucher
from market.protocol.listings.prices import cost_nano
from market.protocol.records.envelope import open_record
from market.protocol.sealing.agreement import Context
from market.protocol.sealing.request import OpenedRequest, digest_of, open_request
from market.seller.accounts import ChannelAccount
from market.seller.answer_stream import WAIT_S, AnswerStream
from market.seller.carrier import Carrier, Gone, JobRefused
from market.seller.credit import Backed, Credited, Creditor
from market.seller.delivery import Delivering, ReceiptSigner
from market.seller.gateway_request import Blocked, GatewayRequest, gateway_request_of
from market.seller.live_listings import ListingOffer, LiveListings
from market.seller.own_gateway import OwnGateway
from market.seller.store import Backing
from market.seller.upstream import Upstream
from runtime.hang_ups import HangUps

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)

CHECKS_AT_ONCE = 2
OPENINGS_AT_ONCE = 2
"""The owner's work has the cores first, so buyers' checks wait for each other."""
SEALED_BYTES_TOKEN = 64
SEALED_BYTES_MORE = 2**16
"""Limits on a sealed request: a fixed size plus bytes per token of the listing's context.

Larger ones stay unopened.
"""


@dataclass(eq=False)
class JobAdmission:
    """The current admission: why no job is admitted (None if open), and slots by the model's market id."""

    closed: Code | None = "not_idle"
    slots: dict[str, int] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when running answers must end at their next block."""
    is_empty: asyncio.Event = field(default_factory=asyncio.Event)
    _running: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.is_empty.set()

    def check_open(self) -> None:
        """Raises JobRefused if nothing is admitted."""
        if self.closed == "draining":
            raise JobRefused(self.closed, "This seller is shutting down.")
        if self.closed is not None:
            raise JobRefused(self.closed, "The owner needs these machines now. Try again later.")

    @contextmanager
    def slot(self, model: str) -> Generator[None]:
        """Take one of the model's slots within the block. Raises JobRefused if none is free."""
        if self._running[model] >= self.slots.get(model, 0):
            raise JobRefused("full", "All slots of this model are in use. Try again shortly.")
        self._running[model] += 1
        self.is_empty.clear()
        try:
            yield
        finally:
            self._running[model] -= 1
            if not self._running.total():
                self.is_empty.set()


@dataclass(frozen=True, slots=True)
class JobHandler:
    """Serves jobs, each over its own carrier. `settled` returns the tokenizers that the marketplace counts by."""

    seller: str
    creditor: Creditor
    live_listings: LiveListings
    admission: JobAdmission
    gateway: OwnGateway
    blocked: Blocked
    receipt_signer: ReceiptSigner
    settled: Callable[[], Set[str]] = frozenset
    wait_s: float = WAIT_S
    hang_ups: HangUps = field(default_factory=HangUps)
    _checking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS_AT_ONCE))
    _opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENINGS_AT_ONCE))

    async def serve(self, packed: bytes, carrier: Carrier) -> None:
        """Answer or refuse. Raises nothing that the buyer can cause."""
        try:
            await self._serve(packed, carrier)
        except JobRefused as refused:
            await carrier.refuse(refused)
        except Gone:
            return
        except MarketError as error:
            await carrier.refuse(JobRefused("malformed", f"{error}."))

    async def take_receipts(self, raws: list[bytes]) -> int:
        """Store buyers' vouchers and receipts for channels known here; return how many lanes grew.

        Raises:
            StatementInvalid: the channel is unknown here.
            MarketError: a record is invalid.
        """
        by_channel: dict[str, list[bytes]] = {}
        for raw in raws:
            by_channel.setdefault(_channel_of(raw), []).append(raw)
        grown = 0
        for channel, receipts in by_channel.items():
            backing = await self.receipt_signer.accounts.backing(channel)
            if backing is None:
                raise StatementInvalid("a receipt's channel has never been used here")
            credited = await self._checked(self.creditor.read, backing.records, backing.statements)
            async with self.receipt_signer.accounts.using(credited) as account:
                grown += await self._learned(account, receipts)
        return grown

    async def _serve(self, packed: bytes, carrier: Carrier) -> None:
        self.admission.check_open()
        job = read_job(packed)
        backed = await self._checked(self.creditor.backed, job.backing)
        # Anything signed with a stated key counts for good, whatever later jobs state or leave out.
        known = await self.receipt_signer.accounts.backing(backed.terms.channel)
        credited, promise = await self._checked(self._promised, backed, known, job)
        offer = self.live_listings.find(promise.voucher.listing)
        if offer is None:
            raise JobRefused("superseded", "The voucher's listing has expired. Use the newest listing.")
        self._check_counting(promise, offer, is_allocated=credited.backing.is_allocated)
        async with self.receipt_signer.accounts.using(credited) as account:
            if job.receipts:
                await self._learned(account, job.receipts)
            await self._admitted(job, account, promise, offer, carrier)

    def _promised(self, backed: Backed, known: Backing | None, job: MarketJob) -> tuple[Credited, Promise]:
        voucher = open_record(job.voucher)
        if voucher.issuer != backed.terms.buyer:
            raise StatementInvalid("the voucher's issuer is not the buyer that the credit is for")
        statements = (*(known.statements if known else ()), *job.statements)
        credited = self.creditor.credited(backed, statements)
        return credited, read_voucher(voucher, credited.terms, credited.standing)

    async def _learned(self, account: ChannelAccount, raws: list[bytes]) -> int:
        async with self._checking:
            return await self.receipt_signer.learn(account, raws)

    async def _checked(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Check signatures in a thread, a few at once, because anyone may send them."""
        async with self._checking:
            return await asyncio.to_thread(look, *args, **kwargs)

    async def _admitted(
        self, job: MarketJob, account: ChannelAccount, promise: Promise, offer: ListingOffer, carrier: Carrier
    ) -> None:
        """Admit the voucher to its lane and the job to a slot while it is served."""
        # Do not await from here to `admitted`: two jobs must not be admitted on one promise.
        self.admission.check_open()
        self._check_length(job, offer)
        self._check_voucher(account, promise, PricedRequest(digest_of(job.sealed), _least_nano(offer)))
        if account.quarantine:
            raise JobRefused("full", "Too many requests of this channel were refused. Try again shortly.")
        if self.hang_ups.wait_s(account.channel.terms.buyer):
            raise JobRefused("full", "Too many requests were cancelled before their first token. Try again later.")
        self.receipt_signer.check_room(promise, len(job.sealed))
        with self.admission.slot(offer.sellable.sold.market_id), account.admitted(promise):
            opened, order = await self._taken(job, account, promise, offer)
            shown = Shown(job.sealed, opened.agreement.keys("request"))
            delivering = Delivering(self.receipt_signer, account, promise, order, offer.sellable, opened, shown)
            async with Upstream.asking(self.gateway, order) as upstream:
                await upstream.head()
                account.forgive(promise)
                answering = AnswerStream(upstream, delivering, carrier, self.admission.stop, self.wait_s)
                await self._answered(answering, account.channel.terms.buyer)

    async def _answered(self, answering: AnswerStream, buyer: str) -> None:
        """Run an answer. Once it may have begun it cannot be refused any more, so failures are only logged."""
        try:
            if await answering.run():
                self.hang_ups.take(buyer)
        except (MarketError, JobRefused) as error:
            log.error("answer without a final receipt", why=str(error))

    async def _taken(
        self, job: MarketJob, account: ChannelAccount, promise: Promise, offer: ListingOffer
    ) -> tuple[OpenedRequest, GatewayRequest]:
        try:
            async with self._opening:
                opened, order = await self._opened(job, promise, offer)
            self._check_low(promise, order)
        except (JobRefused, MarketError):
            account.missed()
            raise
        account.misses = 0
        return opened, order

    def _check_length(self, job: MarketJob, offer: ListingOffer) -> None:
        if len(job.sealed) > SEALED_BYTES_TOKEN * offer.listing.context_length + SEALED_BYTES_MORE:
            raise JobRefused(
                "too_long", f"The request is too long. At most {offer.listing.context_length} tokens are offered."
            )

    def _check_voucher(self, account: ChannelAccount, promise: Promise, priced: PricedRequest) -> None:
        refused = refusal(
            account.channel,
            promise,
            priced,
            self.live_listings.prices(),
            account.credited.credit,
            open_ceilings=account.open_ceilings,
            now_ms=self.receipt_signer.clock_ms(),
        )
        refused = refused or account.check_paid(promise)
        if refused is not None:
            raise JobRefused.of_voucher(refused)

    def _check_counting(self, promise: Promise, offer: ListingOffer, *, is_allocated: bool) -> None:
        """Check what counts the request: the marketplace must be able to count it again in a dispute."""
        tokenizer = promise.voucher.tokenizer
        if tokenizer is None:
            return
        if tokenizer != offer.sellable.tokenizer_sha256 or (is_allocated and tokenizer not in self.settled()):
            raise JobRefused("prices", "The voucher names a tokenizer that cannot count here. Leave it out.")

    def _check_low(self, promise: Promise, order: GatewayRequest) -> None:
        """Check the ceiling against the request's minimum cost, which is known only once it is opened."""
        voucher = promise.voucher
        if voucher.ceiling_nano < voucher.base_nano + order.priced.most_nano:
            raise JobRefused(
                "low", f"The voucher's ceiling must be {order.priced.most_nano} nano-USD above its base."
            )

    async def _opened(
        self, job: MarketJob, promise: Promise, offer: ListingOffer
    ) -> tuple[OpenedRequest, GatewayRequest]:
        """Open the sealed request, once, and check all of it, in a thread because it may be megabytes."""
        voucher = promise.voucher
        context = Context(voucher.channel, voucher.lane, voucher.seq, self.seller)

        def open_and_look() -> tuple[OpenedRequest, GatewayRequest]:
            opened = open_request(job.sealed, offer.seal.key, context, offer.seal.seen)
            job_body = read_job_body(opened.body)
            self.blocked.check(job_body.request)
            return opened, gateway_request_of(job_body, offer, voucher)

        try:
            return await asyncio.to_thread(open_and_look)
        except SealBroken as error:
            raise JobRefused("malformed", f"{error}.") from None


def _least_nano(offer: ListingOffer) -> int:
    """Return the minimum cost of any request of this offer, in nano-USD."""
    least_tokens = max(1, offer.listing.capacity.min_completion_tokens)
    return cost_nano(offer.listing.pricing, 1, 0, least_tokens)


class _RecordBody(Struct):
    channel: str


class _Named(Struct):
    body: _RecordBody


def _channel_of(raw: bytes) -> str:
    """Return the channel that a voucher or receipt names; nothing is verified yet."""
    try:
        return msgspec.json.decode(raw, type=_Named).body.channel
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StatementInvalid("only vouchers and receipts are accepted") from None
