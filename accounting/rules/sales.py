"""A seller's own books: what own machines sold on the market, and a house elsewhere owes for."""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def sold(channel: str, lane: int, seq: int, amount_nano: int, model: str) -> Posting:
    """What one request came to by its final receipt: `asset:market_recv -> income:market_sales`.

    The house's fee is still in it; what the house pays out is less. Once a request.
    """
    name = f"{channel}:{lane}-{seq}"
    legs = moved(chart.ASSET_MARKET_RECV, chart.INCOME_MARKET_SALES, checked_nano(amount_nano))
    return Posting(f"sold:{name}", "sale", name, legs, {"model": model})
