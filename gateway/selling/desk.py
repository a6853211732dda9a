"""One job from its bytes to its final receipt, read top to bottom. Whatever speaks against it is said before any
model is touched.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import msgspec
import structlog
from msgspec import Struct

from gateway.limits.hang_ups import HangUps
from gateway.selling.accounts import Account
from gateway.selling.answering import WAIT_S, Answering
from gateway.selling.carrier import Carrier, Gone, Refused
from gateway.selling.credit import Backed, Credited, Creditor
from gateway.selling.delivery import Delivering, Till
from gateway.selling.own_gateway import OwnGateway
from gateway.selling.proofs import Sold
from gateway.selling.shelf import Offer, Shelf
from gateway.selling.store import Backing
from gateway.selling.upstream import Upstream
from gateway.selling.wanted import Blocked, Order, order_of
from market.auditing.prompts import Shown
from market.channels.admission import PricedRequest, refusal
from market.channels.job import Code, MarketJob, read_job, read_job_body
from market.channels.statements import Promise, read_voucher
from market.errors import MarketError, SealBroken, StatementInvalid
from market.listings.prices import cost_nano
from market.records.envelope import open_record
from market.sealing.agreement import Context
from market.sealing.request import OpenedRequest, digest_of, open_request

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)

CHECKS_AT_ONCE = 2
OPENINGS_AT_ONCE = 2
"""The owner's cores are for the owner: others who want something wait."""
SEALED_BYTES_TOKEN = 64
SEALED_BYTES_MORE = 2**16
"""A sealed request has so many bytes at most, and those for each token that the offer reads; or stays unopened."""


@dataclass(eq=False)
class Place:
    """What is let in just now: why nobody (None where somebody), and slots by the model's market id."""

    closed: Code | None = "not_idle"
    slots: dict[str, int] = field(default_factory=dict)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when what runs must end at the next block border."""
    is_empty: asyncio.Event = field(default_factory=asyncio.Event)
    _running: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.is_empty.set()

    def check_open(self) -> None:
        """Raises Refused where nobody is let in."""
        if self.closed == "draining":
            raise Refused(self.closed, "This seller is about to stop.")
        if self.closed is not None:
            raise Refused(self.closed, "The owner needs these machines just now.")

    @contextmanager
    def slot(self, model: str) -> Generator[None]:
        """One of the model's slots, within the block. Raises Refused where there is none."""
        if self._running[model] >= self.slots.get(model, 0):
            raise Refused("full", "Every spare slot of this model is taken.")
        self._running[model] += 1
        self.is_empty.clear()
        try:
            yield
        finally:
            self._running[model] -= 1
            if not self._running.total():
                self.is_empty.set()


@dataclass(frozen=True, slots=True)
class Desk:
    """Serves jobs, each over its own carrier."""

    seller: str
    creditor: Creditor
    shelf: Shelf
    place: Place
    gateway: OwnGateway
    blocked: Blocked
    till: Till
    wait_s: float = WAIT_S
    hang_ups: HangUps = field(default_factory=HangUps)
    _checking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS_AT_ONCE))
    _opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENINGS_AT_ONCE))

    async def serve(self, packed: bytes, carrier: Carrier) -> None:
        """Answer or refuse. Raises nothing that the buyer can cause."""
        try:
            await self._serve(packed, carrier)
        except Refused as refused:
            await carrier.refuse(refused)
        except Gone:
            return
        except MarketError as error:
            await carrier.refuse(Refused("malformed", f"{error}."))

    async def take_receipts(self, raws: list[bytes]) -> int:
        """Keep vouchers and receipts that buyers signed, of channels known here; returns how many lanes grew.

        Raises:
            MarketError: one of them is not to be believed, or of no channel that is known here.
        """
        by_channel: dict[str, list[bytes]] = {}
        for raw in raws:
            by_channel.setdefault(_channel_of(raw), []).append(raw)
        grown = 0
        for channel, said in by_channel.items():
            backing = await self.till.accounts.backing(channel)
            if backing is None:
                raise StatementInvalid("a receipt is of a channel that has never been used here")
            credited = await self._checked(self.creditor.read, backing.records, backing.statements)
            async with self.till.accounts.using(credited) as account:
                grown += await self._learned(account, said)
        return grown

    async def _serve(self, packed: bytes, carrier: Carrier) -> None:
        self.place.check_open()
        job = read_job(packed)
        backed = await self._checked(self.creditor.backed, job.backing)
        # What was signed with a key counts for good, whatever later jobs say or leave out.
        known = await self.till.accounts.backing(backed.terms.channel)
        credited, promise = await self._checked(self._promised, backed, known, job)
        offer = self.shelf.find(promise.voucher.listing)
        if offer is None:
            raise Refused("superseded", "The voucher is for a listing that has ended: look for the newest one.")
        async with self.till.accounts.using(credited) as account:
            if job.receipts:
                await self._learned(account, job.receipts)
            await self._admitted(job, account, promise, offer, carrier)

    def _promised(self, backed: Backed, known: Backing | None, job: MarketJob) -> tuple[Credited, Promise]:
        voucher = open_record(job.voucher)
        if voucher.issuer != backed.terms.buyer:
            raise StatementInvalid("the voucher is not by whom the credit is for")
        statements = (*(known.statements if known else ()), *job.statements)
        credited = self.creditor.credited(backed, statements)
        return credited, read_voucher(voucher, credited.terms, credited.standing)

    async def _learned(self, account: Account, raws: list[bytes]) -> int:
        async with self._checking:
            return await self.till.learn(account, raws)

    async def _checked(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Signatures are looked at in a thread, of a few at once: anybody may send them."""
        async with self._checking:
            return await asyncio.to_thread(look, *args, **kwargs)

    async def _admitted(
        self, job: MarketJob, account: Account, promise: Promise, offer: Offer, carrier: Carrier
    ) -> None:
        """Admit the voucher to its lane and the job to a slot, for as long as it is served."""
        # From here to `admitted` nothing is awaited: two jobs must not be let in on one promise.
        self.place.check_open()
        self._check_length(job, offer)
        self._check_voucher(account, promise, PricedRequest(digest_of(job.sealed), _least_nano(offer)))
        if account.rests:
            raise Refused("full", "Too many requests of this channel were refused. Try again shortly.")
        if self.hang_ups.wait_s(account.channel.terms.buyer):
            raise Refused(
                "full", "Too many answers were left before their first word. Wait for it, and try again."
            )
        self.till.check_room(promise, len(job.sealed))
        with self.place.slot(offer.ware.sold.market_id), account.admitted(promise):
            opened, order = await self._taken(job, account, promise, offer)
            sold = Sold(offer.raw, Shown(job.sealed, opened.agreement.keys("request")))
            delivering = Delivering(self.till, account, promise, order, offer.ware, opened, sold)
            async with Upstream.asking(self.gateway, order) as upstream:
                await upstream.head()
                account.forgive(promise)
                answering = Answering(upstream, delivering, carrier, self.place.stop, self.wait_s)
                await self._answered(answering, account.channel.terms.buyer)

    async def _answered(self, answering: Answering, buyer: str) -> None:
        """Once an answer may have begun it cannot be refused any more: what fails then is ours to know."""
        try:
            if await answering.run():
                self.hang_ups.take(buyer)
        except (MarketError, Refused) as error:
            log.error("an answer has no final receipt", why=str(error))

    async def _taken(
        self, job: MarketJob, account: Account, promise: Promise, offer: Offer
    ) -> tuple[OpenedRequest, Order]:
        try:
            async with self._opening:
                opened, order = await self._opened(job, promise, offer)
            self._check_low(promise, order)
        except (Refused, MarketError):
            account.missed()
            raise
        account.misses = 0
        return opened, order

    def _check_length(self, job: MarketJob, offer: Offer) -> None:
        if len(job.sealed) > SEALED_BYTES_TOKEN * offer.listing.context_length + SEALED_BYTES_MORE:
            raise Refused("too_long", f"The request is longer than {offer.listing.context_length} tokens can be.")

    def _check_voucher(self, account: Account, promise: Promise, asked: PricedRequest) -> None:
        refused = refusal(
            account.channel,
            promise,
            asked,
            self.shelf.prices(),
            account.credited.credit,
            open_ceilings=account.open_ceilings,
            now_ms=self.till.clock_ms(),
        )
        refused = refused or account.check_paid(promise)
        if refused is not None:
            raise Refused.of_voucher(refused)

    def _check_low(self, promise: Promise, order: Order) -> None:
        """Only once it is opened can be known what a request costs at least."""
        voucher = promise.voucher
        if voucher.ceiling_nano < voucher.base_nano + order.asked.most_nano:
            raise Refused("low", f"The voucher's ceiling must be {order.asked.most_nano} nano-USD above its base.")

    async def _opened(self, job: MarketJob, promise: Promise, offer: Offer) -> tuple[OpenedRequest, Order]:
        """Open what is sealed, once, and look at all of it: in a thread, for it may be megabytes."""
        voucher = promise.voucher
        context = Context(voucher.channel, voucher.lane, voucher.seq, self.seller)

        def open_and_look() -> tuple[OpenedRequest, Order]:
            opened = open_request(job.sealed, offer.seal.key, context, offer.seal.seen)
            wanted = read_job_body(opened.body)
            self.blocked.check(wanted.request)
            return opened, order_of(wanted, offer, voucher)

        try:
            return await asyncio.to_thread(open_and_look)
        except SealBroken as error:
            raise Refused("malformed", f"{error}.") from None


def _least_nano(offer: Offer) -> int:
    """What any request of this offer comes to at least, whatever is sealed in it."""
    least_tokens = max(1, offer.listing.capacity.min_completion_tokens)
    return cost_nano(offer.listing.pricing, 1, 0, least_tokens)


class _Said(Struct):
    channel: str


class _Named(Struct):
    body: _Said


def _channel_of(raw: bytes) -> str:
    """Which channel a voucher or receipt says that it is of; nothing of it is checked yet."""
    try:
        return msgspec.json.decode(raw, type=_Named).body.channel
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StatementInvalid("only vouchers and receipts are taken") from None
