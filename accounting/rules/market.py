"""Define the posting rules of requests to sellers' machines: bought, delivered, sold.

Keys are those of cloud requests (`hold:`, `cap:`, `void:`). So a request that is tried on several lanes
has one hold and one capture. One hold serves every seller that a request tries: the seller that delivers is
captured, and the ledger takes only one capture.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import Posting, UsageRecord
from accounting.money import checked_nano
from accounting.rules.moves import moved
from accounting.rules.parts import HeldPart, Share, reserve_funds, take

BPS = 10_000


@dataclass(frozen=True, slots=True)
class PurchaseHold:
    """The credits that a buyer has reserved for one request, in the order in which the accounts pay."""

    request_id: str
    parts: tuple[HeldPart, ...]

    @property
    def amount_nano(self) -> int:
        return sum(part.amount_nano for part in self.parts)


@dataclass(frozen=True, slots=True)
class SellerBill:
    """The price of what a seller delivered, in nano-USD. Our fee is `fee_bps` hundredths of a percent of it.

    The fee is rounded down and the seller gets the rest, so both add up to the charge exactly.
    """

    seller_id: str
    charge_nano: int
    fee_bps: int

    def __post_init__(self) -> None:
        """Raises PostingInvalid if the fee is not between 0 and the whole charge."""
        checked_nano(self.charge_nano)
        if type(self.fee_bps) is not int or not 0 <= self.fee_bps <= BPS:
            raise PostingInvalid(f"a fee of {self.fee_bps!r} hundredths of a percent is out of range")

    @property
    def fee_nano(self) -> int:
        return self.charge_nano * self.fee_bps // BPS

    @property
    def net_nano(self) -> int:
        return self.charge_nano - self.fee_nano

    def within(self, most_nano: int) -> "SellerBill":
        """Return the same sale, charged at most `most_nano`."""
        return SellerBill(self.seller_id, min(self.charge_nano, most_nano), self.fee_bps)


def hold(request_id: str, shares: Sequence[Share], expires_ns: int) -> Posting:
    """Reserve the most that a request may cost: pending `user|pool:paid -> clearing:market`, part by part.

    Raises:
        PostingInvalid: a share comes from a credit grant. Promotional credits cannot pay sellers: a user who is
            also a seller would cash them out.
    """
    if grant := next((share.account for share in shares if chart.is_promo(share.account)), None):
        raise PostingInvalid(f"{grant} holds promotional credits, which cannot pay sellers")
    return Posting(
        f"hold:{request_id}", "hold", request_id, reserve_funds(shares, chart.CLEARING_MARKET, expires_ns)
    )


def capture(order: PurchaseHold, sale: SellerBill, usage: UsageRecord | None = None) -> Posting:
    """Charge what was delivered from the hold, at most all of it: `clearing:market -> seller:maturing` and our
    fee.

    The usage row is booked with this event's charge, and with the seller's part of it as cost.
    """
    sale = sale.within(order.amount_nano)
    legs = (
        *take(order.parts, chart.CLEARING_MARKET, sale.charge_nano),
        *moved(chart.CLEARING_MARKET, chart.seller_maturing(sale.seller_id), sale.net_nano),
        *moved(chart.CLEARING_MARKET, chart.INCOME_MARKET_FEE, sale.fee_nano),
    )
    usages = (replace(usage, charge_nano=sale.charge_nano, cost_nano=sale.net_nano),) if usage else ()
    return Posting(f"cap:{order.request_id}", "purchase", order.request_id, legs, usages=usages)


def release(order: PurchaseHold) -> Posting:
    """Release a whole hold: no seller delivered anything, and nothing is charged."""
    legs = take(order.parts, chart.CLEARING_MARKET, 0)
    return Posting(f"void:{order.request_id}", "release", order.request_id, legs)
