"""What the books know of a limit's use: where counters begin that nobody remembers."""

from collections.abc import Callable

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from accounting.ledger.postings import FROM_CACHE
from accounting.tables import usage_table
from gateway.identity.key_queries import ids_used_by
from gateway.identity.tables import person_table
from gateway.limits.counters import CounterKey
from gateway.limits.local import Reader

_NS_PER_S = 10**9


def used_since(sessions: Callable[[], Session]) -> Reader:
    """Sum up usage rows. A request counts where it came to anything: refused and failed ones gave back."""

    def read(key: CounterKey, since_s: int) -> int:
        usage = usage_table.c
        query = select(_sum(key)).where(usage.started_ns >= since_s * _NS_PER_S, _whose(key.scope))
        if key.model is not None:
            query = query.where(usage.model == key.model)
        if key.measure == "tokens":
            # What was found needed nobody's work.
            query = query.where(usage.lane != FROM_CACHE)
        if key.measure == "requests":
            query = query.where(or_(usage.outcome == "complete", usage.completion_tokens > 0))
        with sessions() as session:
            return int(session.execute(query).scalar_one() or 0)

    return read


def _sum(key: CounterKey) -> ColumnElement[int]:
    usage = usage_table.c
    if key.measure == "requests":
        return func.count()
    if key.measure == "tokens":
        return func.sum(usage.prompt_tokens + usage.completion_tokens)
    return func.sum(usage.charge_nano)


def _whose(scope: str) -> ColumnElement[bool]:
    usage = usage_table.c
    kind, _, name = scope.partition(":")
    if kind == "key":
        return usage.key_id == name
    if kind == "person":
        return and_(usage.user_id == name, usage.key_id.in_(ids_used_by([name])))
    people = select(person_table.c.user_id).where(person_table.c.organization_id == name)
    return and_(usage.user_id.in_(people), usage.key_id.in_(ids_used_by(people)))
