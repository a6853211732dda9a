"""One request over as many sellers as it needs: the next one continues where one broke off, and is no dearer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from market.buyer.answer import AnswerWriter
from market.buyer.channels import ChannelState
from market.buyer.credit import BuyerCredit
from market.buyer.errors import SellerBusy, SellerFailed, SellerRefuses
from market.buyer.market_request import MarketRequest
from market.buyer.owed import OWED_AT_ONCE, OwedPage
from market.buyer.purchasable_listing import PurchasableListing
from market.buyer.purchase import Bought, Purchase, PurchaseServices, tell_of
from market.buyer.purchase_request import PurchaseRequest
from market.buyer.response_decoder import Flag
from market.buyer.sellers import SellerTracker
from market.buyer.shielded import shielded
from market.buyer.shop import Shop
from market.buyer.tokenizers import PurchaseTokenizers
from market.buyer.vouchers import vouch
from market.errors import MarketError, RequestNotCounted
from market.network.challenge import is_behind
from market.protocol.listings.prices import cost_nano
from market.protocol.matching.candidate import PROBATION_COST_MAX_NANO
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange
from runtime.workers.logbook import note

SELLERS_MAX = 4
"""If several sellers break off in turn, the request itself may be the cause."""
_LANE_TRIES = 3
_LANE_REFUSALS = frozenset(("spent", "busy", "unpaid"))
_CHANNEL_REFUSALS = frozenset(("limit", "ended"))
# Codes that say nothing about the seller: our voucher, listing, credit or the request was wrong.
_OF_VOUCHER = ("prices", "request", "ended", "superseded", "no_credit", "marketplace_changed", "dear")
_OURS = frozenset((*_OF_VOUCHER, "malformed", "content", "too_long"))
_TELLING_MAX = 256
# Flags counted against the seller. Others are only noted: small models repeat themselves, and engines may say
# more.
_HELD_AGAINST: frozenset[Flag] = frozenset(("inflated", "invisible", "blank"))


@dataclass
class _Course:
    """A request's progress so far."""

    parts: list[Bought] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

    @property
    def spent_nano(self) -> int:
        return sum(part.amount_nano for part in self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.completion_tokens for part in self.parts)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def is_plain(self) -> bool:
        return all(part.is_plain for part in self.parts)


class Buyer:
    """Serve purchase requests. One event loop owns it."""

    def __init__(
        self,
        means: PurchaseServices,
        shop: Shop,
        sellers: SellerTracker,
        credit: BuyerCredit,
        tokenizers: PurchaseTokenizers,
    ) -> None:
        self._means = means
        self._shop = shop
        self._sellers = sellers
        self._credit = credit
        self._tokenizers = tokenizers
        self._telling: set[asyncio.Task[None]] = set()
        self._serving: Counter[str] = Counter()
        self.served: Callable[[PurchasableListing, bool], None] = _ignore_served
        """Called for every listing that delivered something to a caller, and whether its answer was odd."""
        self.changed = asyncio.Event()
        """Set when the offers change; the code that sends them clears it."""

    async def serve(self, request: PurchaseRequest, exchange: Exchange) -> None:
        """Answer over the exchange.

        Raises:
            Refusal: nothing was delivered, and nothing is charged.
        """
        self._serving[request.id] += 1
        try:
            await self._serve(request, exchange)
        finally:
            self._serving[request.id] -= 1
            if not self._serving[request.id]:
                del self._serving[request.id]

    async def _serve(self, request: PurchaseRequest, exchange: Exchange) -> None:
        answer, course = AnswerWriter(request.market_request, exchange), _Course()
        offering: PurchasableListing | None = self._found(request)
        while offering is not None:
            failure = await self._buy_part(request, offering, course, answer)
            if failure is None:
                await answer.finish(course.parts)
                return
            note("seller_failed", seller=offering.seller[:16], code=failure.code, error=str(failure))
            if not course.tokens:
                raise refusal_of(failure)
            offering = self._next(request, offering, course)
        refusal = Refusal(502, "seller_broke_off", "The seller's answer was interrupted. Try again.")
        if request.is_audit:
            raise refusal
        await answer.break_off(course.parts, refusal)

    async def owed(self, after: str) -> OwedPage:
        """Return the cost of finished requests after this id that the ledger may lack."""
        serving = list(self._serving)
        now_ms = self._sellers.now_ms()
        page = await asyncio.to_thread(self._means.store.owed, after, serving, OWED_AT_ONCE, now_ms)
        # The request may have begun another job meanwhile.
        return OwedPage(tuple(owed for owed in page if owed.id not in self._serving))

    async def forget_owed(self, request_ids: list[str]) -> None:
        """Forget requests that the ledger has."""
        await asyncio.to_thread(self._means.store.forget_owed, request_ids)

    async def remind(self) -> None:
        """Send sellers receipts they may lack, such as those of an answer during which we died."""
        where = {offering.seller: offering.base_url for offering in self._shop.offerings()[0]}
        for state, lane in self._credit.unsent_receipts():
            url = where.get(state.terms.seller)
            if url and lane in state.unsent_receipts and not await tell_of(self._means, url, state, lane):
                # Try an unreachable seller only once per round.
                del where[state.terms.seller]

    async def stop(self) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)

    def _found(self, request: PurchaseRequest) -> PurchasableListing:
        try:
            return self._shop.find(request.listing)
        except SellerRefuses as error:
            raise refusal_of(error) from None

    def _next(
        self, request: PurchaseRequest, offering: PurchasableListing, course: _Course
    ) -> PurchasableListing | None:
        if request.is_alone or not request.market_request.can_be_continued or not course.is_plain:
            return None
        if len(course.tried) >= SELLERS_MAX or course.tokens >= request.market_request.tokens_max:
            return None
        able = self._shop.substitutes(offering, same_weights=True)
        if request.continues:
            able += self._shop.substitutes(offering, same_weights=False)
        return next((other for other in able if other.seller not in course.tried), None)

    async def _buy_part(
        self, request: PurchaseRequest, offering: PurchasableListing, course: _Course, answer: AnswerWriter
    ) -> SellerFailed | None:
        """Buy one seller's part, on another lane if the seller objects to this one. Return the failure, if any."""
        course.tried.add(offering.seller)
        failure: SellerFailed | None = None
        for _ in range(_LANE_TRIES):
            failure = await self._try(request, offering, course, answer)
            if failure is None or failure.code not in _LANE_REFUSALS:
                break
        if failure is not None:
            self._learn(offering, failure)
        return failure

    async def _try(
        self, request: PurchaseRequest, offering: PurchasableListing, course: _Course, answer: AnswerWriter
    ) -> SellerFailed | None:
        market_request = (
            request.market_request.after(course.text, course.tokens) if course.tokens else request.market_request
        )
        seller = self._sellers.of(offering.seller)
        seller.in_flight += 1
        self.changed.set()
        try:
            async with (
                self._begun(request, offering, market_request, course) as purchase,
                aclosing(purchase.chunks()) as chunks,
            ):
                async for together in chunks:
                    await answer.pass_on(together, purchase.prompt_tokens)
        except SellerFailed as error:
            return error
        else:
            slots = offering.listing.capacity.slots
            tokens = course.parts[-1].completion_tokens
            self._sellers.answered(offering.seller, offering.name, slots, purchase.ttft_s or 0.0, tokens)
            return None
        finally:
            seller.in_flight -= 1
            self.changed.set()

    @asynccontextmanager
    async def _begun(
        self,
        request: PurchaseRequest,
        offering: PurchasableListing,
        market_request: MarketRequest,
        course: _Course,
    ) -> AsyncIterator[Purchase]:
        """Begin a purchase and settle it in any case. Raises SellerFailed, Refusal."""
        await self._prove(offering)
        is_partner = self._credit.is_partner(offering.seller)
        counting = await self._tokenizers.counting(offering.listing, is_partner=is_partner)
        try:
            prompt_tokens = await asyncio.to_thread(counting.prompt_tokens, market_request.fields)
        except RequestNotCounted as error:
            raise Refusal(
                400, "not_countable", f"The market cannot price this request: {error}", error.field
            ) from None
        if course.tokens:
            market_request = market_request.affordable(
                offering.listing.pricing, prompt_tokens, request.ceiling_nano - course.spent_nano
            )
        most_nano = cost_nano(
            offering.listing.pricing, prompt_tokens, 0, market_request.tokens_max * market_request.choices
        )
        self._check_cost(request, offering, course, most_nano)
        state = await self._credit.channel_for(offering.seller, most_nano)
        pseudonym = self._credit.speaker(state)
        try:
            vouched = vouch(
                state, pseudonym, offering, market_request, counting, most_nano, request.id, self._means.standing
            )
        except SellerFailed:
            raise
        except MarketError as error:
            raise SellerFailed(f"its listing's key cannot be used: {error}", "garbled") from None
        purchase = Purchase(
            self._means, offering, market_request, state, pseudonym, vouched, counting, prompt_tokens
        )
        try:
            yield purchase
        except SellerRefuses as error:
            self._avoid_rejected(state, vouched.begun.lane, error)
            raise
        finally:
            bought = await shielded(purchase.settle())
            course.parts.append(bought)
            self._draw_audit(request, offering, bought)
            if bought.flags:
                note("answer_flagged", seller=offering.seller[:16], flags=",".join(bought.flags))
                self._sellers.flagged(offering.seller, len(_HELD_AGAINST.intersection(bought.flags)))
            self._tell(purchase)

    def _draw_audit(self, request: PurchaseRequest, offering: PurchasableListing, bought: Bought) -> None:
        # Do not test partners, least of all on their own credit.
        if bought.completion_tokens and not request.is_audit and not self._credit.is_partner(offering.seller):
            self.served(offering, bool(_HELD_AGAINST.intersection(bought.flags)))

    def _avoid_rejected(self, state: ChannelState, lane: int, error: SellerRefuses) -> None:
        """Stop using what a seller objects to. Raises SellerFailed if the seller objects to valid credit."""
        if error.code in _LANE_REFUSALS:
            state.shun(lane, error.code)
        elif error.code in _CHANNEL_REFUSALS and not self._credit.is_partner(state.terms.seller):
            if not state.may_be_used_up(error.code, lane, self._sellers.now_ms()):
                raise SellerFailed(f"it rejects credit that is available: {error}", "disbelieved") from None
            state.is_retired = True

    def _check_cost(
        self, request: PurchaseRequest, offering: PurchasableListing, course: _Course, most_nano: int
    ) -> None:
        if course.spent_nano + most_nano > request.ceiling_nano:
            raise SellerRefuses("the answer would cost more than was reserved", "dear")
        if offering.is_probation and most_nano > PROBATION_COST_MAX_NANO:
            raise SellerRefuses("the request is too expensive for a new seller", "dear")

    async def _prove(self, offering: PurchasableListing) -> None:
        """Check once per address that the seller itself answers there. Raises SellerFailed."""
        seller = self._sellers.of(offering.seller)
        if seller.proven_at == offering.base_url:
            return
        if not await is_behind(self._means.outbound, offering.base_url, offering.seller, offering.record.key):
            raise SellerFailed("it did not prove its identity at its address", "unreachable")
        seller.proven_at = offering.base_url

    def _learn(self, offering: PurchasableListing, error: SellerFailed) -> None:
        if isinstance(error, SellerBusy):
            self._sellers.was_busy(offering.seller, offering.name, offering.listing.capacity.slots)
        elif error.code not in _OURS:
            self._sellers.failed(offering.seller)
            if error.code in ("broke_off", "unreachable"):
                self._sellers.of(offering.seller).proven_at = ""

    def _tell(self, purchase: Purchase) -> None:
        """Send the receipt in the background; the seller's next job includes it, too."""
        if len(self._telling) < _TELLING_MAX:
            task = asyncio.create_task(purchase.tell(), name="receipt")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)


def _ignore_served(offering: PurchasableListing, is_odd: bool) -> None:
    pass


def refusal_of(failure: SellerFailed) -> Refusal:
    """Return the gateway's refusal if nothing was delivered; the gateway may then try another backend."""
    message = f"The seller did not answer: {failure}."
    if isinstance(failure, SellerBusy):
        return Refusal(429, "seller_full", message, retry_after=str(failure.retry_after_s))
    if failure.code == "slow":
        return Refusal(504, "seller_slow", message)
    return Refusal(502, f"seller_{failure.code}", message)
