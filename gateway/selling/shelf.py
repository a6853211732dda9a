"""What was listed and still holds: a voucher is taken for any listing that has not expired, at its prices.

Time is this machine's monotonic clock alone. A buyer whose clock is wrong may use a listing that has ended here,
and is told to look for the newer one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.selling.seals import Seal
from gateway.settings import SoldModel
from market.counting.token_count import Counting
from market.listings.listing import Listing
from market.listings.prices import Prices


@dataclass(frozen=True, slots=True, eq=False)
class Ware:
    """A model that is sold, with what is needed to count for it."""

    sold: SoldModel
    counting: Counting
    tokenizer_sha256: str
    weights_sha256: str


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One revision of a listing, `raw` as it was signed. `until_s` is when it ends by the monotonic clock."""

    digest: str
    raw: bytes
    ware: Ware
    listing: Listing
    seal: Seal
    until_s: float


class Shelf:
    """Offers by their listing's digest; those that have ended are forgotten, and with them their sealing keys."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offers: dict[str, Offer] = {}

    def put(self, offer: Offer) -> None:
        self._forget()
        self._offers[offer.digest] = offer

    def find(self, digest: str) -> Offer | None:
        self._forget()
        return self._offers.get(digest)

    def prices(self) -> dict[str, Prices]:
        """Of all that still hold, by digest."""
        self._forget()
        return {digest: offer.listing.pricing for digest, offer in self._offers.items()}

    def _forget(self) -> None:
        now_s = self._monotonic()
        self._offers = {digest: offer for digest, offer in self._offers.items() if now_s < offer.until_s}
