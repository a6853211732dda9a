"""Credits that users have without having bought them through Stripe."""

from accounting import chart
from accounting.ledger.postings import Leg, Posting
from accounting.money import checked_nano


def manual_credit(credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posting:
    """The operator gives a user credits against money that reached the bank: `asset:bank -> user:paid`."""
    leg = Leg(chart.ASSET_BANK, chart.user_paid(user_id), checked_nano(amount_nano))
    return Posting(f"credit:{credit_id}", "credit", credit_id, (leg,), {"reason": reason})
