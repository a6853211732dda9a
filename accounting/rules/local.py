"""Book the work of own machines in compute units, which are never mixed with money."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from accounting import chart
from accounting.ledger.postings import Leg, Posting, UsageRecord
from accounting.rules.moves import moved


def local_use(usage: UsageRecord) -> Posting:
    """Book the compute that own machines spent on a request: `cu:dept -> cu:supply`.

    A request without cost (a cached answer, a refusal) is an event without transfers, so every request is in the
    ledger.
    """
    return Posting(f"use:{usage.request_id}", "use", usage.request_id, worked((usage,)), usages=(usage,))


def local_uses(usages: Sequence[UsageRecord]) -> Posting:
    """Book the compute of many requests as one event: a transfer for each pair of accounts.

    Its key is derived from its requests, so the same requests are always the same event. A single request is
    `local_use`. If a request already has its usage row, the ledger refuses the whole event and names its id.
    """
    if len(usages) == 1:
        return local_use(usages[0])
    name = hashlib.sha256("\n".join(usage.request_id for usage in usages).encode()).hexdigest()[:32]
    return Posting(f"uses:{name}", "uses", name, worked(usages), usages=tuple(usages))


def worked(usages: Sequence[UsageRecord]) -> tuple[Leg, ...]:
    """Return the transfers of the compute that own machines spent, `cu:dept -> cu:supply`."""
    spent: Counter[tuple[str, str]] = Counter()
    for usage in usages:
        spent[usage.department, usage.lane] += usage.compute_nano
    return tuple(
        leg
        for (department, lane), compute_nano in spent.items()
        for leg in moved(chart.department(department), chart.supply(lane), compute_nano)
    )
