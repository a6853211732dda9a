"""Which listings could be bought now, at which terms, and why others could not."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from gateway.buying.credit import Credit
from gateway.buying.display import OFFERS_MAX, Display
from gateway.buying.errors import SellerRefuses
from gateway.buying.offers import Excluded, NotOnOffer, Offers, OnOffer
from gateway.buying.orders import Orders
from gateway.buying.sellers import Sellers
from gateway.buying.ware import Ware
from market.auditing.findings import Believed, Findings, Thing, believed
from market.listings.listing import Listing, is_on_offer
from market.listings.prices import Prices
from market.records.envelope import Record
from market.records.key_status import StandingOf

QUOTED_MS = 60_000
"""So long a listing that a newer one has superseded is remembered by its digest."""
_QUOTES_MAX = 4096
_NOTHING_FOUND = Believed()


class Keeper(Protocol):
    """Who keeps the records (gateway.market.bookkeeper)."""

    @property
    def standing(self) -> StandingOf: ...

    def listings(self, now_ms: int) -> list[tuple[Record, Listing]]: ...

    def findings(self, now_ms: int) -> list[tuple[str, Findings]]: ...


class Shop:
    """Looks at the keeper's listings with our own rules. No I/O."""

    def __init__(
        self,
        keeper: Keeper,
        orders: Orders,
        sellers: Sellers,
        credit: Credit,
        own_id: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6,
    ) -> None:
        self._keeper = keeper
        self._orders = orders
        self._sellers = sellers
        self._credit = credit
        self._own_id = own_id
        self._now_ms = now_ms
        self._display = Display()
        self._quotes: dict[str, tuple[Ware, int]] = {}
        self._findings: tuple[object, Mapping[Thing, Believed]] = (None, {})
        self.trusted = frozenset(orders.trusted_auditors)

    def wares(self) -> tuple[list[Ware], list[NotOnOffer]]:
        """What could be bought, and what could not."""
        wares: list[Ware] = []
        excluded: list[NotOnOffer] = []
        now_ms = self._now_ms()
        for record, listing in self._keeper.listings(now_ms):
            ware = self._ware(record, listing)
            if reason := self._exclusion(ware, now_ms):
                excluded.append(NotOnOffer(record.digest, record.issuer, listing.id, reason))
            else:
                wares.append(ware)
        self._quote(wares, now_ms)
        return wares, excluded

    def offers(self, version: int) -> Offers:
        wares, excluded = self.wares()
        sold: dict[str, list[str]] = {}
        for ware in wares:
            sold.setdefault(ware.listing.id, []).append(ware.seller)
        broken = {model: self._sellers.broken(sellers) for model, sellers in sold.items()}
        suspended = self._suspended(excluded)
        shown = [*self._display.of(wares, self._is_friend), *suspended][:OFFERS_MAX]
        rows = tuple(self._row(ware, broken.get(ware.listing.id, ())) for ware in shown)
        return Offers(version, rows, tuple(excluded[:OFFERS_MAX]))

    def find(self, digest: str) -> Ware:
        """What the gateway has chosen, as it is listed now.

        Raises:
            SellerRefuses: it is not on offer any more, or not as it was when it was chosen.
        """
        wares, _ = self.wares()
        quoted, seen_ms = self._quotes.get(digest, (None, 0))
        if quoted is None or seen_ms < self._now_ms() - QUOTED_MS:
            raise SellerRefuses("this listing is not on offer", "superseded")
        newest = [ware for ware in wares if (ware.seller, ware.name) == (quoted.seller, quoted.name)]
        if not newest or not _holds(newest[0], quoted):
            raise SellerRefuses("this listing is not on offer any more, or says something else now", "superseded")
        return newest[0]

    def substitutes(self, ware: Ware, *, same_weights: bool) -> list[Ware]:
        """Who may go on with what this one has begun: no dearer, no less careful with data, in the same place.

        The best of them first; without those that have no room.
        """
        wares, _ = self.wares()
        able = [other for other in wares if self._may_stand_in(other, ware, same_weights=same_weights)]
        return sorted(filter(self._has_room, able), key=self._preference)

    def of_weights(self, weights: str, quantization: str) -> list[Ware]:
        """All that is sold of these weights in this precision."""
        wares, _ = self.wares()
        sold_as = (weights, quantization)
        return [each for each in wares if (each.listing.weights_sha256, each.listing.quantization) == sold_as]

    def _has_room(self, ware: Ware) -> bool:
        seller = self._sellers.of(ware.seller)
        return seller.cap(ware.name, ware.listing.capacity.slots).headroom(seller.in_flight) > 0

    def _preference(self, ware: Ware) -> tuple[float, int]:
        return -self._sellers.of(ware.seller).track.quality, int(ware.listing.pricing.completion)

    def _may_stand_in(self, other: Ware, ware: Ware, *, same_weights: bool) -> bool:
        mine, theirs = ware.listing, other.listing
        is_same = mine.weights_sha256 == theirs.weights_sha256 if same_weights else mine.id == theirs.id
        return (
            is_same
            and other.seller != ware.seller
            and not is_dearer(theirs.pricing, mine.pricing)
            and other.region == ware.region
            and theirs.quantization == mine.quantization
            and (theirs.data_policy.is_zdr or not mine.data_policy.is_zdr)
            and (ware.is_probation or not other.is_probation)
            and theirs.context_length >= mine.context_length
        )

    def _ware(self, record: Record, listing: Listing) -> Ware:
        url = listing.endpoint or ""
        if not url and self._orders.house_url:
            url = f"{self._orders.house_url}/market/v1/relay/{record.issuer}"
        return Ware(record, listing, url, self._is_probation(record.issuer, listing))

    def _is_friend(self, seller: str) -> bool:
        return seller in self._orders.friends or self._credit.is_friend(seller)

    def _is_probation(self, seller: str, listing: Listing) -> bool:
        """A newcomer: neither we nor an auditor that we trust, nor the owner, knows anything good of it."""
        if self._is_friend(seller):
            return False
        if self._believed(seller, listing).tier != "declared":
            return False
        return not self._sellers.is_known(seller)

    def _suspended(self, excluded: Iterable[NotOnOffer]) -> list[Ware]:
        """What would be on offer if its seller had not been found out: to be shown, with the reason."""
        digests = {each.listing for each in excluded if each.reason == "suspended"}
        if not digests:
            return []
        listings = self._keeper.listings(self._now_ms())
        return [self._ware(record, listing) for record, listing in listings if record.digest in digests]

    def _suspended_why(self, ware: Ware) -> str:
        """Why nothing is bought there: what we have seen ourselves, or an auditor that we trust."""
        auditor = self._believed(ware.seller, ware.listing).suspended_by
        own = self._sellers.suspended.get(ware.seller, "")
        return own or (f"failed audits of {auditor[:12]}" if auditor else "")

    def _believed(self, seller: str, listing: Listing) -> Believed:
        """What auditors that we trust say of it; looked up anew every second."""
        now_s = self._now_ms() // 1000
        if self._findings[0] != (now_s, self.trusted):
            told = self._keeper.findings(now_s * 1000)
            self._findings = (now_s, self.trusted), believed(told, self.trusted)
        thing = (seller, listing.id, listing.weights_sha256, listing.quantization)
        return self._findings[1].get(thing, _NOTHING_FOUND)

    def _exclusion(self, ware: Ware, now_ms: int) -> Excluded | None:
        listing, orders = ware.listing, self._orders
        if ware.seller == self._own_id:
            return "own"
        if orders.models and listing.id not in orders.models:
            return "model"
        if not is_on_offer(listing, now_ms):
            return "hours"
        if "text" not in listing.input_modalities or "text" not in listing.output_modalities:
            return "modality"
        if listing.pricing.request:
            # The books have prices by the token; a fee on top would be neither held nor shown.
            return "request_fee"
        if (
            listing.pricing.prompt > orders.prompt_nano_max
            or listing.pricing.completion > orders.completion_nano_max
        ):
            return "price"
        if ware.is_probation and "public" not in orders.buy_for:
            return "label"
        if not ware.base_url:
            return "unreachable"
        has_house = self._credit.has_house and not self._credit.is_friend(ware.seller)
        if not has_house and not self._credit.is_at_hand(ware.seller):
            return "no_credit"
        return "suspended" if self._suspended_why(ware) else None

    def _row(self, ware: Ware, broken: Collection[str]) -> OnOffer:
        listing, record = ware.listing, ware.record
        seller = self._sellers.of(ware.seller)
        is_cleared = "internal" in self._orders.buy_for and not ware.is_probation
        return OnOffer(
            listing=record.digest,
            seller=ware.seller,
            name=ware.name,
            model=listing.id,
            weights=listing.weights_sha256,
            tokenizer=listing.tokenizer_sha256,
            quantization=listing.quantization,
            region=ware.region,
            keeps_data=not listing.data_policy.is_zdr,
            clearance="internal" if is_cleared else "public",
            context_tokens=listing.context_length,
            output_tokens=listing.max_output_length,
            prompt_nano=int(listing.pricing.prompt),
            cached_nano=int(listing.pricing.input_cache_read),
            completion_nano=int(listing.pricing.completion),
            has_tools="tools" in listing.supported_features,
            has_schemas="structured_outputs" in listing.supported_features,
            has_logprobs="logprobs" in listing.supported_features,
            slots=listing.capacity.slots,
            cap=seller.cap(ware.name, listing.capacity.slots).cap,
            in_flight=seller.in_flight,
            good=seller.tally.good,
            bad=seller.tally.bad + seller.anomalies,
            at_s=seller.tally.at_s,
            ttft_p90_s=seller.ttft_p90_s,
            is_probation=ware.is_probation,
            is_broken=ware.seller in broken,
            tier=self._believed(ware.seller, listing).tier,
            audits_good=seller.audits.good,
            audits_bad=seller.audits.bad,
            suspended_why=self._suspended_why(ware),
        )

    def _quote(self, wares: list[Ware], now_ms: int) -> None:
        for ware in wares:
            self._quotes[ware.record.digest] = (ware, now_ms)
        if len(self._quotes) > _QUOTES_MAX:
            recent = {d: quote for d, quote in self._quotes.items() if quote[1] >= now_ms - QUOTED_MS}
            self._quotes = dict(list(recent.items())[-_QUOTES_MAX:])


def _holds(newest: Ware, quoted: Ware) -> bool:
    """Whether everything that the choice was made for is still so, or better."""
    new, old = newest.listing, quoted.listing
    is_same = (new.id, new.weights_sha256, new.tokenizer_sha256, new.quantization, newest.region) == (
        old.id,
        old.weights_sha256,
        old.tokenizer_sha256,
        old.quantization,
        quoted.region,
    )
    return (
        is_same
        and not is_dearer(new.pricing, old.pricing)
        and (new.data_policy.is_zdr or new.data_policy == old.data_policy)
        and (quoted.is_probation or not newest.is_probation)
        and new.context_length >= old.context_length
        and new.max_output_length >= old.max_output_length
        and set(new.supported_features) >= set(old.supported_features)
    )


def is_dearer(one: Prices, other: Prices) -> bool:
    """Whether any of its prices is higher."""
    return one.prompt > other.prompt or one.completion > other.completion or one.request > other.request
