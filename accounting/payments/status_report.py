"""Report the state of payments: waiting and failed messages, frozen users, and the last reconciliation."""

import json
from typing import Any

from sqlalchemy import func, select

from accounting.ledger.balances import Reader
from accounting.payments.frozen import reasons
from accounting.payments.payouts import ATTEMPTS_MAX
from accounting.payments.tables import account_at_stripe_table, payment_job_table, payout_table, stripe_event_table

RECONCILIATION = "reconciliation"
_SHOWN_MAX = 50
_chore, _event, _payout = payment_job_table.c, stripe_event_table.c, payout_table.c
_seller = account_at_stripe_table.c


def status_report(reader: Reader) -> dict[str, Any]:
    """Return the state for admins and programs, with long lists shortened."""
    counts = dict.fromkeys(("waiting", "failed"), 0)
    by_status = select(_event.status, func.count()).where(_event.status.in_(counts)).group_by(_event.status)
    for status, count in reader.execute(by_status):
        counts[status] = count
    failures = select(_event.id, _event.kind, _event.object_id, _event.reason).where(_event.status == "failed")
    stopped = select(_seller.seller_id, _seller.frozen_reason).where(_seller.frozen_reason.is_not(None))
    given_up = select(_payout.id, _payout.seller_id, _payout.reason).where(
        _payout.status == "transferred", _payout.attempt > ATTEMPTS_MAX
    )
    done = select(payment_job_table).where(_chore.name == RECONCILIATION, _chore.done_ns > 0)
    last = reader.execute(done).one_or_none()
    return {
        **counts,
        "failures": [
            {"id": event_id, "kind": kind, "object": object_id, "reason": reason}
            for event_id, kind, object_id, reason in reader.execute(failures.limit(_SHOWN_MAX))
        ],
        "frozen": [{"user": user_id, "reason": why} for user_id, why in reasons(reader, limit=_SHOWN_MAX).items()],
        "frozen_sellers": [
            {"user": seller_id, "reason": why} for seller_id, why in reader.execute(stopped.limit(_SHOWN_MAX))
        ],
        "payouts_given_up": [
            {"id": payout_id, "user": seller_id, "reason": reason}
            for payout_id, seller_id, reason in reader.execute(given_up.limit(_SHOWN_MAX))
        ],
        "reconciled_ns": last.done_ns if last else None,
        "reconciliation": json.loads(last.details) if last else None,
    }
