"""The choice of listings to show if there are too many: a flood of new identities gets only a limited share."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable

from market.buyer.purchasable_listing import PurchasableListing

OFFERS_MAX = 512
MODEL_MAX = 64
"""Listings of one model, not counting partners."""
NEWCOMERS_MAX = 128


class ListingSample:
    """Choose at random, with the same result for the life of the process, so that the list does not flicker."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)

    def of(
        self, offerings: Iterable[PurchasableListing], is_partner: Callable[[str], bool]
    ) -> list[PurchasableListing]:
        """Return partners first, then known sellers, then new sellers with one listing per model each."""
        shown: list[PurchasableListing] = []
        of_model: Counter[str] = Counter()
        seen: set[tuple[str, str, str]] = set()
        newcomers = 0
        for offering in sorted(offerings, key=lambda each: self._place(each, is_partner)):
            kind = "" if offering.is_probation else offering.listing.quantization
            thing = offering.seller, offering.listing.id, kind
            if not is_partner(offering.seller) and (thing in seen or of_model[offering.listing.id] >= MODEL_MAX):
                continue
            if offering.is_probation and newcomers >= NEWCOMERS_MAX:
                continue
            seen.add(thing)
            of_model[offering.listing.id] += 1
            newcomers += offering.is_probation
            shown.append(offering)
        return shown[:OFFERS_MAX]

    def _place(self, offering: PurchasableListing, is_partner: Callable[[str], bool]) -> tuple[bool, bool, bytes]:
        draw = hashlib.blake2b(
            f"{offering.seller}/{offering.name}".encode(), key=self._salt, digest_size=8
        ).digest()
        return not is_partner(offering.seller), offering.is_probation, draw
