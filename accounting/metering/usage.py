"""Total the usage rows, grouped by day, model, lane, key or user."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, case, func, select

from accounting.ledger.balances import ROWS_MAX, Reader
from accounting.metering.own_cost import work_nano
from accounting.metering.rate_periods import rate_periods
from accounting.tables import usage_table

UsageGroup = Literal["day", "model", "lane", "provider", "key_id", "user_id", "department", "outcome"]

_NS_PER_DAY = 86_400 * 10**9
_SUMMED = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "charge_nano",
    "cost_nano",
    "compute_nano",
    "reasoning_tokens",
    "tool_tokens",
)


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The usage of one group of requests. `group` has a text for each requested name (a UTC day: 2026-11-21).

    `own_cost_nano` is what the work of own machines cost their owner, in nano-USD, at the rates of its time.
    """

    group: tuple[str, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    charge_nano: int
    cost_nano: int
    compute_nano: int
    reasoning_tokens: int = 0
    tool_tokens: int = 0
    own_cost_nano: int = 0


def usage_totals(
    reader: Reader,
    by: Sequence[UsageGroup],
    *,
    since_ns: int,
    until_ns: int,
    user_id: str | None = None,
    whose: ColumnElement[bool] | None = None,
    offset: int = 0,
    limit: int = ROWS_MAX,
) -> list[UsageTotal]:
    """Return totals of the requests that started from `since_ns` to before `until_ns`, ordered by group.

    Return at most `ROWS_MAX` groups, after the first `offset`. `whose` narrows the rows and lets an index find
    them; without it, the rows of all users in that time are read.
    """
    groups = [_group_column(name) for name in by]
    # Convert in Python, not in SQL: PostgreSQL sums BIGINT to NUMERIC, and an amount here is an int.
    sums = [func.sum(usage_table.c[name]) for name in _SUMMED]
    started = usage_table.c.started_ns
    periods = rate_periods(reader, since_ns, until_ns)
    # Sum the compute of each period. Multiplied by the rates it might exceed the database's integers.
    sums += [func.sum(case((period.applies, usage_table.c.compute_nano), else_=0)) for period in periods]
    query = select(*groups, func.count(), *sums).where(started >= since_ns, started < until_ns)
    if user_id is not None:
        query = query.where(usage_table.c.user_id == user_id)
    if whose is not None:
        query = query.where(whose)
    query = query.group_by(*groups).order_by(*groups).limit(min(limit, ROWS_MAX)).offset(offset)
    totals = []
    for row in reader.execute(query):
        group = tuple(_group_text(name, value) for name, value in zip(by, row, strict=False))
        requests, *summed = (int(value or 0) for value in row[len(by) :])
        spent = zip(summed[len(_SUMMED) :], periods, strict=True)
        own_cost_nano = sum(work_nano(compute_nano, period.rate_nano) for compute_nano, period in spent)
        counted = dict(zip(_SUMMED, summed, strict=False))
        totals.append(UsageTotal(group=group, requests=requests, own_cost_nano=own_cost_nano, **counted))
    return totals


def _group_column(name: UsageGroup) -> ColumnElement[Any]:
    if name == "day":
        return (usage_table.c.started_ns // _NS_PER_DAY).label("day")
    return usage_table.c[name]


def _group_text(name: UsageGroup, value: Any) -> str:
    return str(date(1970, 1, 1) + timedelta(days=value)) if name == "day" else str(value)
