"""The gateway's request to its buyer."""

from dataclasses import dataclass

from market.audits.audit_target import AUDIT_ID
from market.buyer.market_request import MarketRequest


@dataclass(frozen=True, slots=True)
class PurchaseRequest:
    """A request, the listing that the gateway chose, and the most it pays in all, in nano-USD.

    `continues`: a copy of the model that is not byte-identical may continue a partial answer. `is_alone`: no other
    seller may continue it.
    """

    id: str
    market_request: MarketRequest
    listing: str
    ceiling_nano: int
    continues: bool = False
    is_alone: bool = False

    @property
    def is_audit(self) -> bool:
        """Return whether this is our own audit request."""
        return self.id.startswith(AUDIT_ID)
