"""Book the debts of users and sellers: settled from their credits, or written off.

A debt is settled by its own event, right after the event that brought credits. The amount owed changes from moment
to moment, but an event that is sent again must be the same event. `cause` is the key of the event that brought the
credits, so each such event settles once.
"""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def settled(cause: str, user_id: str, owed_nano: int, available_nano: int) -> Posting:
    """Settle a user's debt from new credits, as far as they go: `user:paid -> asset:user_recv`."""
    amount_nano = checked_nano(max(0, min(owed_nano, available_nano)))
    legs = moved(chart.user_paid(user_id), chart.user_receivable(user_id), amount_nano)
    return Posting(f"settle:{cause}", "settlement", user_id, legs)


def settled_by_seller(cause: str, seller_id: str, owed_nano: int, available_nano: int) -> Posting:
    """Settle a seller's debt from matured earnings: `seller:payable -> asset:seller_recv`."""
    amount_nano = checked_nano(max(0, min(owed_nano, available_nano)))
    legs = moved(chart.seller_payable(seller_id), chart.seller_receivable(seller_id), amount_nano)
    return Posting(f"settle:{cause}", "settlement", seller_id, legs)


def written_off(incident: str, receivable: str, amount_nano: int, reason: str) -> Posting:
    """Write off a debt: `expense:bad_debt -> asset:user_recv` or `asset:seller_recv`."""
    legs = moved(chart.EXPENSE_BAD_DEBT, receivable, checked_nano(amount_nano))
    return Posting(f"bad:{incident}", "write_off", incident, legs, {"reason": reason})
