"""Grant credits to users and pools outside of Stripe, and expire promotional credits."""

from accounting import chart
from accounting.ledger.postings import EventKind, Leg, Posting
from accounting.money import checked_nano


def manual_credit(credit_id: str, user_id: str, amount_nano: int, reason: str) -> Posting:
    """Give a user credits for money that reached the bank: `asset:bank -> user:paid`."""
    return _given(f"credit:{credit_id}", "credit", chart.ASSET_BANK, chart.user_paid(user_id), amount_nano, reason)


def pool_credit(credit_id: str, pool_id: str, amount_nano: int, reason: str) -> Posting:
    """Give an organization credits: `asset:bank -> pool:paid`. Ids are shared with `manual_credit`."""
    return _given(f"credit:{credit_id}", "pool", chart.ASSET_BANK, chart.pool_paid(pool_id), amount_nano, reason)


def pool_funded(move_id: str, user_id: str, pool_id: str, amount_nano: int) -> Posting:
    """Move a user's own credits into an organization's pool: `user:paid -> pool:paid`."""
    leg = Leg(chart.user_paid(user_id), chart.pool_paid(pool_id), checked_nano(amount_nano))
    return Posting(f"pool:{move_id}", "pool", move_id, (leg,))


def pool_returned(move_id: str, pool_id: str, user_id: str, amount_nano: int) -> Posting:
    """Move a pool's credits back to a user: `pool:paid -> user:paid`. An id is one move, there or back."""
    leg = Leg(chart.pool_paid(pool_id), chart.user_paid(user_id), checked_nano(amount_nano))
    return Posting(f"pool:{move_id}", "pool", move_id, (leg,))


def promo(grant_id: str, user_id: str, amount_nano: int, reason: str) -> Posting:
    """Grant promotional credits, which expire: `expense:promo -> user:promo:<grant>`, once per grant."""
    account = chart.user_promo(user_id, grant_id)
    return _given(f"promo:{grant_id}", "promo", chart.EXPENSE_PROMO, account, amount_nano, reason)


def expire(grant_id: str, user_id: str, available_nano: int, number: int) -> Posting:
    """Expire what no hold keeps of an ended credit grant: `user:promo:<grant> -> income:breakage`.

    What a hold keeps expires after that hold is resolved, by another event. `number` counts a grant's expiries
    from 1.
    """
    leg = Leg(chart.user_promo(user_id, grant_id), chart.INCOME_BREAKAGE, checked_nano(available_nano))
    return Posting(f"exp:{grant_id}:{number}", "expiry", grant_id, (leg,))


def goodwill(goodwill_id: str, user_id: str, amount_nano: int, reason: str) -> Posting:
    """Compensate a user with credits like bought ones, at our expense: `expense:goodwill -> user:paid`."""
    user = chart.user_paid(user_id)
    return _given(f"goodwill:{goodwill_id}", "goodwill", chart.EXPENSE_GOODWILL, user, amount_nano, reason)


def _given(key: str, kind: EventKind, debit: str, credit: str, amount_nano: int, reason: str) -> Posting:
    leg = Leg(debit, credit, checked_nano(amount_nano))
    return Posting(key, kind, key.partition(":")[2], (leg,), {"reason": reason})
