"""A listing from the point of view of a buyer."""

from dataclasses import dataclass

from market.protocol.listings.listing import Listing
from market.protocol.records.envelope import Record


@dataclass(frozen=True, slots=True)
class PurchasableListing:
    """A listing that may be bought, the URL to request it from, and whether its seller is new to us."""

    record: Record
    listing: Listing
    base_url: str
    is_probation: bool

    @property
    def seller(self) -> str:
        return self.record.issuer

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def region(self) -> str | None:
        """Return the country of all its machines; None if there are several or it is not stated."""
        countries = {each.country_code for each in self.listing.datacenters} - {"ZZ"}
        known = all(each.country_code != "ZZ" for each in self.listing.datacenters)
        return countries.pop() if known and len(countries) == 1 else None
