"""Book the cost of audits: requests to sellers that no user made.

They are paid as usual, as the marketplace's expense.
"""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def audit(request_id: str, provider: str, cost_nano: int, seller: str) -> Posting:
    """Book an audit's cost, `expense:audit -> provider:accrued`, once per request id.

    `seller` names the audited seller, for readers of the ledger.
    """
    legs = moved(chart.EXPENSE_AUDIT, chart.provider_accrued(provider), checked_nano(cost_nano))
    return Posting(f"audit:{request_id}", "audit", request_id, tuple(legs), {"seller": seller})
