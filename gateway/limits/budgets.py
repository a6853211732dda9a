"""Limits on money with the amounts spent according to the ledger."""

import time
from typing import Any

from sqlalchemy.orm import Session

from accounting.money import format_usd
from gateway.limits.counters import CounterKey
from gateway.limits.past_use import used_in
from gateway.limits.windows import window
from gateway.quota import Quota
from runtime.times import at


def budget_facts(session: Session, quota: Quota) -> dict[str, Any]:
    """A limit on money in this day or month (UTC); running requests are not included yet."""
    assert quota.span, "spend is limited in a span"
    begin_s, end_s = window(quota.span, time.time())
    spent_nano = used_in(session, CounterKey.of(quota), begin_s)
    return {
        "scope": quota.scope,
        "span": quota.span,
        "model": quota.model,
        "amount": format_usd(quota.amount),
        "spent": format_usd(spent_nano),
        "left": format_usd(max(0, quota.amount - spent_nano)),
        "resets_at": at(end_s * 10**9),
    }
