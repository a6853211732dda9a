"""What own machines did for requests, in compute units: never mixed with money."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from accounting import chart
from accounting.ledger.postings import Leg, Posting, UsageRecord
from accounting.rules.moves import moved


def local_use(usage: UsageRecord) -> Posting:
    """Book what own machines spent on a request, in compute units: `cu:dept -> cu:supply`.

    A request that cost nothing (an answer from the cache, a refusal) is an event without transfers: every
    request has its place in the books.
    """
    return Posting(f"use:{usage.request_id}", "use", usage.request_id, worked((usage,)), usages=(usage,))


def local_uses(usages: Sequence[UsageRecord]) -> Posting:
    """Book what own machines spent on many requests as one event: a transfer for each pair of accounts.

    Its key is made of the requests it ends, so that the same ones are always the same event; one of them alone is
    `local_use`. A request that has its usage row already makes the books refuse the whole event with its id.
    """
    if len(usages) == 1:
        return local_use(usages[0])
    name = hashlib.sha256("\n".join(usage.request_id for usage in usages).encode()).hexdigest()[:32]
    return Posting(f"uses:{name}", "uses", name, worked(usages), usages=tuple(usages))


def worked(usages: Sequence[UsageRecord]) -> tuple[Leg, ...]:
    """Return the transfers of what own machines spent, `cu:dept -> cu:supply`."""
    spent: Counter[tuple[str, str]] = Counter()
    for usage in usages:
        spent[usage.department, usage.lane] += usage.compute_nano
    return tuple(
        leg
        for (department, lane), compute_nano in spent.items()
        for leg in moved(chart.department(department), chart.supply(lane), compute_nano)
    )
