"""Reads a limit's use from the ledger, as the initial value of counters that are not in memory."""

from collections.abc import Callable

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from accounting.ledger.postings import FROM_CACHE
from accounting.tables import usage_table
from gateway.identity.key_queries import usage_of
from gateway.identity.tables import user_table
from gateway.limits.counters import CounterKey
from gateway.limits.local import Reader
from gateway.limits.tables import usage_sum_table
from gateway.limits.windows import DAY_S

_NS_PER_S = 10**9


def used_since(sessions: Callable[[], Session]) -> Reader:
    """Return a reader that opens its own sessions."""

    def read(key: CounterKey, since_s: int, counted_ns: int | None) -> int:
        with sessions() as session:
            used = used_in(session, key, since_s)
            if counted_ns is not None:
                used -= _rows_used(session, key, max(counted_ns, since_s * _NS_PER_S))
            return used

    return read


def used_in(session: Session, key: CounterKey, since_s: int) -> int:
    """Return the use of a limit since a second, by requests with a result; others gave their amounts back.

    Days and months start at midnight, so they are read from daily sums: the time does not grow with use.
    """
    if key.span == "minute":
        return _rows_used(session, key, since_s * _NS_PER_S)
    sums = usage_sum_table.c
    measured = {"requests": sums.requests, "tokens": sums.tokens, "spend": sums.spend_nano}[key.measure]
    query = select(func.sum(measured)).where(sums.scope == key.scope, sums.day >= since_s // DAY_S)
    if key.model is not None:
        # Behind an alias or as a fallback the model answered under its own name, and counted under that too.
        query = query.where(or_(sums.model == key.model, sums.served_model == key.model))
    return int(session.execute(query).scalar_one() or 0)


def _rows_used(session: Session, key: CounterKey, since_ns: int) -> int:
    """Return the use from the usage rows themselves, because daily sums do not show the last minute."""
    usage = usage_table.c
    query = select(_measured(key)).where(usage.started_ns >= since_ns, used_by(key.scope))
    if key.model is not None:
        query = query.where(or_(usage.model == key.model, usage.served_model == key.model))
    if key.measure == "tokens":
        # Answers from the cache took no work.
        query = query.where(usage.lane != FROM_CACHE)
    if key.measure == "requests":
        query = query.where(or_(usage.outcome == "complete", usage.completion_tokens > 0))
    return int(session.execute(query).scalar_one() or 0)


def _measured(key: CounterKey) -> ColumnElement[int]:
    usage = usage_table.c
    if key.measure == "requests":
        return func.count()
    return func.sum(usage.charge_nano if key.measure == "spend" else usage.prompt_tokens + usage.completion_tokens)


def used_by(scope: str) -> ColumnElement[bool]:
    """Return a condition for the usage rows of a scope, which finds them by their keys."""
    usage = usage_table.c
    kind, _, name = scope.partition(":")
    if kind == "key":
        return usage.key_id == name
    if kind == "user":
        return usage_of(name)
    organization, _, team = name.partition("/") if kind == "team" else (name, "", "")
    users = select(user_table.c.user_id).where(user_table.c.organization_id == organization)
    return and_(usage_of(users), usage.department == team) if team else usage_of(users)
