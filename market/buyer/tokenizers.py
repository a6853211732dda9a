"""Choose what counts a purchase: the listing's tokenizer if the admin named it here, else four bytes a token."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass

from accounting.metering.tokenizers import Tokenizers
from market.protocol.counting.token_count import Counting
from market.protocol.listings.listing import Listing


@dataclass(frozen=True, slots=True)
class PurchaseTokenizers:
    """`named` has the admin's tokenizers by SHA-256. `settled` returns the hashes that the marketplace counts by.

    A purchase on the marketplace's credit needs both: the marketplace must be able to count again in a dispute.
    """

    named: Tokenizers
    settled: Callable[[], Set[str]]

    def choose(self, listing: Listing, *, is_partner: bool) -> str | None:
        """Return the SHA-256 of the tokenizer that counts a purchase; None for four bytes a token. No I/O."""
        sha256 = listing.tokenizer_sha256
        is_usable = self.named.knows(sha256) and (is_partner or sha256 in self.settled())
        return sha256 if is_usable else None

    async def counting(self, listing: Listing, *, is_partner: bool) -> Counting:
        """Return what counts a purchase. A file that cannot be used is logged, and bytes are counted."""
        sha256 = self.choose(listing, is_partner=is_partner)
        return Counting(await asyncio.to_thread(self.named.find, sha256) if sha256 else None)
