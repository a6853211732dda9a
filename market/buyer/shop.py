"""The listings that can be bought now, their terms, and why others cannot."""

from collections.abc import Callable, Collection, Iterable, Mapping

from market.buyer.credit import BuyerCredit
from market.buyer.errors import SellerRefuses
from market.buyer.listing_sample import OFFERS_MAX, ListingSample
from market.buyer.orders import Orders
from market.buyer.purchasable_listing import PurchasableListing
from market.buyer.sellers import SellerTracker
from market.buyer.tokenizers import PurchaseTokenizers
from market.network.record_keeper import RecordKeeper
from market.protocol.audits.findings import Believed, Thing, believed
from market.protocol.listings.listing import Listing, is_on_offer
from market.protocol.listings.prices import Prices
from market.protocol.offers import Excluded, NotOnOffer, Offers, OnOffer
from market.protocol.records.envelope import Record
from runtime.times import now_ms

QUOTED_MS = 60_000
"""Milliseconds for which a superseded listing is still found by its digest."""
_QUOTES_MAX = 4096
_NOTHING_FOUND = Believed()


class Shop:
    """Apply our own rules to the known listings. No I/O."""

    def __init__(
        self,
        keeper: RecordKeeper,
        orders: Orders,
        sellers: SellerTracker,
        credit: BuyerCredit,
        tokenizers: PurchaseTokenizers,
        own_id: str,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._keeper = keeper
        self._orders = orders
        self._sellers = sellers
        self._credit = credit
        self._tokenizers = tokenizers
        self._own_id = own_id
        self._now_ms = now_ms
        self._display = ListingSample()
        self._quotes: dict[str, tuple[PurchasableListing, int]] = {}
        self._findings: tuple[object, Mapping[Thing, Believed]] = (None, {})
        self.trusted = frozenset(orders.trusted_auditors)

    def offerings(self) -> tuple[list[PurchasableListing], list[NotOnOffer]]:
        """Return listings that can be bought, and those that cannot."""
        offerings: list[PurchasableListing] = []
        excluded: list[NotOnOffer] = []
        now_ms = self._now_ms()
        for record, listing in self._keeper.listings(now_ms):
            offering = self._offering(record, listing)
            if reason := self._exclusion(offering, now_ms):
                excluded.append(NotOnOffer(record.digest, record.issuer, listing.id, reason))
            else:
                offerings.append(offering)
        self._quote(offerings, now_ms)
        return offerings, excluded

    def offers(self, version: int) -> Offers:
        offerings, excluded = self.offerings()
        sold: dict[str, list[str]] = {}
        for offering in offerings:
            sold.setdefault(offering.listing.id, []).append(offering.seller)
        broken = {model: self._sellers.broken(sellers) for model, sellers in sold.items()}
        suspended = self._suspended(excluded)
        shown = [*self._display.of(offerings, self._is_partner), *suspended][:OFFERS_MAX]
        rows = tuple(self._row(offering, broken.get(offering.listing.id, ())) for offering in shown)
        return Offers(version, rows, tuple(excluded[:OFFERS_MAX]))

    def find(self, digest: str) -> PurchasableListing:
        """Return the current version of the listing that the gateway chose.

        Raises:
            SellerRefuses: the listing is no longer on offer, or its terms got worse since it was chosen.
        """
        offerings, _ = self.offerings()
        quoted, seen_ms = self._quotes.get(digest, (None, 0))
        if quoted is None or seen_ms < self._now_ms() - QUOTED_MS:
            raise SellerRefuses("this listing is not on offer", "superseded")
        newest = [
            offering for offering in offerings if (offering.seller, offering.name) == (quoted.seller, quoted.name)
        ]
        if not newest or not _holds(newest[0], quoted):
            raise SellerRefuses("this listing is no longer on offer, or has changed", "superseded")
        return newest[0]

    def substitutes(self, offering: PurchasableListing, *, same_weights: bool) -> list[PurchasableListing]:
        """Return listings that may continue this one's partial answer, the best first, without those that are
        full.

        None is dearer, keeps more data or runs in another region.
        """
        offerings, _ = self.offerings()
        able = [other for other in offerings if self._may_stand_in(other, offering, same_weights=same_weights)]
        return sorted(filter(self._has_room, able), key=self._preference)

    def of_weights(self, weights: str, quantization: str) -> list[PurchasableListing]:
        """Return all listings of these weights in this precision."""
        offerings, _ = self.offerings()
        sold_as = (weights, quantization)
        return [each for each in offerings if (each.listing.weights_sha256, each.listing.quantization) == sold_as]

    def _has_room(self, offering: PurchasableListing) -> bool:
        seller = self._sellers.of(offering.seller)
        return seller.cap(offering.name, offering.listing.capacity.slots).headroom(seller.in_flight) > 0

    def _preference(self, offering: PurchasableListing) -> tuple[float, int]:
        return -self._sellers.of(offering.seller).track.quality, int(offering.listing.pricing.completion)

    def _may_stand_in(
        self, other: PurchasableListing, offering: PurchasableListing, *, same_weights: bool
    ) -> bool:
        begun, substitute = offering.listing, other.listing
        is_same = begun.weights_sha256 == substitute.weights_sha256 if same_weights else begun.id == substitute.id
        return (
            is_same
            and other.seller != offering.seller
            and not is_dearer(substitute.pricing, begun.pricing)
            and other.region == offering.region
            and substitute.quantization == begun.quantization
            and (substitute.data_policy.is_zdr or not begun.data_policy.is_zdr)
            and (offering.is_probation or not other.is_probation)
            and substitute.context_length >= begun.context_length
        )

    def _offering(self, record: Record, listing: Listing) -> PurchasableListing:
        url = listing.endpoint or ""
        if not url and self._orders.marketplace_url:
            url = f"{self._orders.marketplace_url}/market/v1/relay/{record.issuer}"
        return PurchasableListing(record, listing, url, self._is_probation(record.issuer, listing))

    def _is_partner(self, seller: str) -> bool:
        return seller in self._orders.partners or self._credit.is_partner(seller)

    def _is_probation(self, seller: str, listing: Listing) -> bool:
        """Return whether the seller is new: not known as good to us, a trusted auditor or the admin."""
        if self._is_partner(seller):
            return False
        if self._believed(seller, listing).tier != "declared":
            return False
        return not self._sellers.is_known(seller)

    def _suspended(self, excluded: Iterable[NotOnOffer]) -> list[PurchasableListing]:
        """Return listings excluded only by their seller's suspension; they are shown with the reason."""
        digests = {each.listing for each in excluded if each.reason == "suspended"}
        if not digests:
            return []
        listings = self._keeper.listings(self._now_ms())
        return [self._offering(record, listing) for record, listing in listings if record.digest in digests]

    def _suspended_why(self, offering: PurchasableListing) -> str:
        """Return why we buy nothing there: our own audits, or those of an auditor we trust."""
        auditor = self._believed(offering.seller, offering.listing).suspended_by
        own = self._sellers.suspended.get(offering.seller, "")
        return own or (f"failed audits of {auditor[:12]}" if auditor else "")

    def _believed(self, seller: str, listing: Listing) -> Believed:
        """Return what our trusted auditors say of it; read again every second."""
        now_s = self._now_ms() // 1000
        if self._findings[0] != (now_s, self.trusted):
            findings = self._keeper.findings(now_s * 1000)
            self._findings = (now_s, self.trusted), believed(findings, self.trusted)
        thing = (seller, listing.id, listing.weights_sha256, listing.quantization)
        return self._findings[1].get(thing, _NOTHING_FOUND)

    def _exclusion(self, offering: PurchasableListing, now_ms: int) -> Excluded | None:
        listing, orders = offering.listing, self._orders
        if offering.seller == self._own_id:
            return "own"
        if orders.models and listing.id not in orders.models:
            return "model"
        if not is_on_offer(listing, now_ms):
            return "hours"
        if "text" not in listing.input_modalities or "text" not in listing.output_modalities:
            return "modality"
        if listing.pricing.request:
            # The ledger has prices per token only: a fee per request would be neither held nor shown.
            return "request_fee"
        if (
            listing.pricing.prompt > orders.prompt_nano_max
            or listing.pricing.completion > orders.completion_nano_max
        ):
            return "price"
        if offering.is_probation and "public" not in orders.buy_for:
            return "label"
        if not offering.base_url:
            return "unreachable"
        has_marketplace = self._credit.has_marketplace and not self._credit.is_partner(offering.seller)
        if not has_marketplace and not self._credit.is_at_hand(offering.seller):
            return "no_credit"
        return "suspended" if self._suspended_why(offering) else None

    def _row(self, offering: PurchasableListing, broken: Collection[str]) -> OnOffer:
        listing, record = offering.listing, offering.record
        seller = self._sellers.of(offering.seller)
        is_cleared = "internal" in self._orders.buy_for and not offering.is_probation
        return OnOffer(
            listing=record.digest,
            seller=offering.seller,
            name=offering.name,
            model=listing.id,
            weights=listing.weights_sha256,
            tokenizer=self._tokenizers.choose(listing, is_partner=self._credit.is_partner(offering.seller)),
            quantization=listing.quantization,
            region=offering.region,
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
            cap=seller.cap(offering.name, listing.capacity.slots).cap,
            in_flight=seller.in_flight,
            good=seller.tally.good,
            bad=seller.tally.bad + seller.anomalies,
            at_s=seller.tally.at_s,
            is_probation=offering.is_probation,
            is_broken=offering.seller in broken,
            tier=self._believed(offering.seller, listing).tier,
            audits_good=seller.audits.good,
            audits_bad=seller.audits.bad,
            suspended_why=self._suspended_why(offering),
        )

    def _quote(self, offerings: list[PurchasableListing], now_ms: int) -> None:
        for offering in offerings:
            self._quotes[offering.record.digest] = (offering, now_ms)
        if len(self._quotes) > _QUOTES_MAX:
            recent = {d: quote for d, quote in self._quotes.items() if quote[1] >= now_ms - QUOTED_MS}
            self._quotes = dict(list(recent.items())[-_QUOTES_MAX:])


def _holds(newest: PurchasableListing, quoted: PurchasableListing) -> bool:
    """Return whether everything that the choice relied on is unchanged or better."""
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
    """Return whether any of its prices is higher."""
    return one.prompt > other.prompt or one.completion > other.completion or one.request > other.request
