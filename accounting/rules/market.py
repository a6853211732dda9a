"""The posting rules of requests that other people's machines answer: bought, delivered, sold.

Keys are those of requests in the cloud (`hold:`, `cap:`, `void:`, `reap:`), so that a request which is tried on
one lane after the other has one hold and one capture. One hold serves every seller that a request is tried at:
whoever delivers is captured, and the books take one capture only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import EventKind, Leg, Posting, UsageRecord
from accounting.money import checked_nano
from accounting.rules.moves import moved
from accounting.rules.parts import Part, Share, pay_unheld, put_aside, take

BPS = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    """What a buyer has put aside for one request, in the order in which the accounts pay.

    `buyer_id` owes what is delivered and no longer covered, whoever's credits the parts were.
    """

    request_id: str
    buyer_id: str
    parts: tuple[Part, ...]
    expires_ns: int

    @property
    def amount_nano(self) -> int:
        return sum(part.amount_nano for part in self.parts)


@dataclass(frozen=True, slots=True)
class Sale:
    """What a seller delivered comes to, in nano-USD; our fee is `fee_bps` hundredths of a percent of it.

    The fee is rounded down and the rest is the seller's, so that both are the charge to the last nano.
    """

    seller_id: str
    charge_nano: int
    fee_bps: int
    price_version: str = ""

    def __post_init__(self) -> None:
        checked_nano(self.charge_nano)
        if type(self.fee_bps) is not int or not 0 <= self.fee_bps <= BPS:
            raise PostingInvalid(f"a fee of {self.fee_bps!r} hundredths of a percent is none")

    @property
    def fee_nano(self) -> int:
        return self.charge_nano * self.fee_bps // BPS

    @property
    def net_nano(self) -> int:
        return self.charge_nano - self.fee_nano

    def within(self, most_nano: int) -> "Sale":
        """The same sale, charged at most so much."""
        return Sale(self.seller_id, min(self.charge_nano, most_nano), self.fee_bps, self.price_version)


def hold(request_id: str, shares: Sequence[Share], expires_ns: int) -> Posting:
    """Put the most that a request may cost aside: pending `user|pool:paid -> clearing:market`, part by part.

    Raises:
        PostingInvalid: a share of a promo lot. Credits that were given buy nothing from sellers: whoever is both
            would cash them out.
    """
    if lot := next((share.account for share in shares if chart.is_promo(share.account)), None):
        raise PostingInvalid(f"{lot} was given, and buys nothing on the market")
    return Posting(f"hold:{request_id}", "hold", request_id, put_aside(shares, chart.CLEARING_MARKET, expires_ns))


def capture(order: Order, sale: Sale, usage: UsageRecord | None = None) -> Posting:
    """Take what was delivered from the hold, at most all of it: `clearing:market -> seller:maturing` and our fee.

    The usage row is booked with this event's charge, and the seller's part of it as cost.
    """
    sale = sale.within(order.amount_nano)
    paid = take(order.parts, chart.CLEARING_MARKET, sale.charge_nano)
    return _sold("purchase", order, paid, sale, usage)


def late_capture(
    order: Order, sale: Sale, usage: UsageRecord | None = None, *, covered: Sequence[Share] = ()
) -> Posting:
    """Book what was delivered after the reaper had given the hold back: at most what was held.

    `covered` of it comes from credits that are there, `user|pool:paid -> clearing:market`; the buyer owes the
    rest, `asset:user_recv -> clearing:market`. It has the capture's key; the books take it only after the reaper.
    """
    sale = sale.within(order.amount_nano)
    debt = chart.user_receivable(order.buyer_id)
    paid = pay_unheld(sale.charge_nano, covered, debt, chart.CLEARING_MARKET)
    return _sold("late", order, paid, sale, usage)


def release(order: Order, usage: UsageRecord | None = None) -> Posting:
    """Give a hold back whole: no seller delivered anything, nothing is charged."""
    usages = () if usage is None else (usage,)
    return Posting(f"void:{order.request_id}", "release", order.request_id, _given_back(order), usages=usages)


def reap(order: Order) -> Posting:
    """Give a hold back whole whose request died and can no longer do it."""
    return Posting(f"reap:{order.request_id}", "reap", order.request_id, _given_back(order))


def _given_back(order: Order) -> tuple[Leg, ...]:
    return take(order.parts, chart.CLEARING_MARKET, 0)


def _sold(kind: EventKind, order: Order, paid: tuple[Leg, ...], sale: Sale, usage: UsageRecord | None) -> Posting:
    legs = (
        *paid,
        *moved(chart.CLEARING_MARKET, chart.seller_maturing(sale.seller_id), sale.net_nano),
        *moved(chart.CLEARING_MARKET, chart.INCOME_MARKET_FEE, sale.fee_nano),
    )
    usages = (replace(usage, charge_nano=sale.charge_nano, cost_nano=sale.net_nano),) if usage else ()
    meta = {"price": sale.price_version} if sale.price_version else {}
    return Posting(f"cap:{order.request_id}", kind, order.request_id, legs, meta, usages)
