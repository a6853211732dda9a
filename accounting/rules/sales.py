"""Book a seller's own income: what its machines sold on the market, and an outside marketplace owes for."""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def sold(channel: str, lane: int, seq: int, amount_nano: int, model: str) -> Posting:
    """Book a request's amount by its final receipt: `asset:market_recv -> income:market_sales`. Once a request.

    The amount still includes the marketplace's fee, so the marketplace pays out less.
    """
    name = f"{channel}:{lane}-{seq}"
    legs = moved(chart.ASSET_MARKET_RECV, chart.INCOME_MARKET_SALES, checked_nano(amount_nano))
    return Posting(f"sold:{name}", "sale", name, legs, {"model": model})
