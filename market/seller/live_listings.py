"""Listings that are still valid: a voucher is accepted for any listing that has not expired, at its prices.

Time is this machine's monotonic clock only. A buyer whose clock is wrong may use a listing that has expired here;
it is told to use the newer one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from market.protocol.channels.statements import Voucher
from market.protocol.counting.token_count import Counting
from market.protocol.listings.listing import Listing
from market.protocol.listings.prices import Prices
from market.seller.seals import Seal
from market.settings.seller import SoldModel


@dataclass(frozen=True, slots=True, eq=False)
class SellableModel:
    """A model for sale, with what is needed to count its tokens."""

    sold: SoldModel
    counting: Counting
    tokenizer_sha256: str
    weights_sha256: str

    def counting_of(self, voucher: Voucher) -> Counting:
        """Return what counts the voucher's request."""
        return self.counting if voucher.tokenizer else Counting(None)


@dataclass(frozen=True, slots=True, eq=False)
class ListingOffer:
    """One revision of a listing, `raw` as it was signed. `until_s` is its end on the monotonic clock."""

    digest: str
    raw: bytes
    sellable: SellableModel
    listing: Listing
    seal: Seal
    until_s: float


class LiveListings:
    """Offers by their listing's digest; expired ones are forgotten together with their sealing keys.

    `monotonic` gives seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offers: dict[str, ListingOffer] = {}

    def put(self, offer: ListingOffer) -> None:
        self._forget()
        self._offers[offer.digest] = offer

    def find(self, digest: str) -> ListingOffer | None:
        self._forget()
        return self._offers.get(digest)

    def prices(self) -> dict[str, Prices]:
        """Return the prices of all valid offers, by digest."""
        self._forget()
        return {digest: offer.listing.pricing for digest, offer in self._offers.items()}

    def _forget(self) -> None:
        now_s = self._monotonic()
        self._offers = {digest: offer for digest, offer in self._offers.items() if now_s < offer.until_s}
