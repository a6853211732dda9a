"""Release sellers' earnings: they are held until the time for complaints has passed, and a reserve for longer."""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.market import BPS
from accounting.rules.moves import moved

RESERVE_DAYS = 30
"""The reserve from a day's earnings is kept for this time, in days."""


def matured(seller_id: str, day: str, amount_nano: int, reserve_bps: int = 0) -> Posting:
    """Make a day's earnings payable: `seller:maturing -> seller:payable`, and a part of them `-> seller:reserve`.

    The reserve's part is rounded down. A seller's day (such as 2026-11-22) matures once.
    """
    kept_nano = checked_nano(amount_nano) * reserve_bps // BPS
    maturing = chart.seller_maturing(seller_id)
    legs = (
        *moved(maturing, chart.seller_payable(seller_id), amount_nano - kept_nano),
        *moved(maturing, chart.seller_reserve(seller_id), kept_nano),
    )
    return Posting(f"mat:{seller_id}:{day}", "mature", f"{seller_id}:{day}", legs)


def reserve_released(seller_id: str, day: str, amount_nano: int) -> Posting:
    """Release the reserve of a day's earnings after `RESERVE_DAYS`: `seller:reserve -> seller:payable`.

    At most what is left of it is released: refunds may have used the reserve.
    """
    legs = moved(chart.seller_reserve(seller_id), chart.seller_payable(seller_id), checked_nano(amount_nano))
    return Posting(f"res:{seller_id}:{day}", "reserve", f"{seller_id}:{day}", legs)
