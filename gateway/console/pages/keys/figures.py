"""Figures of keys and limits: a key's last use, and the usage of a limit."""

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting.tables import usage_table
from gateway.identity.key_rows import KeyRow
from gateway.identity.quotas import of_scopes
from gateway.identity.tables import api_key_table
from gateway.limits.counters import CounterKey
from gateway.limits.past_use import used_in
from gateway.limits.tables import usage_sum_table
from gateway.limits.windows import DAY_S, window
from gateway.quota import Quota

KeyState = Literal["valid", "ends soon", "expired", "revoked", "user removed"]

METRICS = {
    "spend month": "USD per month",
    "spend day": "USD per day",
    "requests minute": "requests per minute",
    "requests day": "requests per day",
    "requests month": "requests per month",
    "tokens minute": "tokens per minute",
    "tokens day": "tokens per day",
    "tokens month": "tokens per month",
    "concurrency": "concurrent requests",
}
"""Labels of what limits measure, by measure and span; forms offer them in this order."""

_NS_PER_S = 10**9
_SOON_NS = 7 * 86_400 * _NS_PER_S


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key with its usage this month (UTC); `limit_nano` is its own monthly budget in nano-USD."""

    row: KeyRow
    owner: str
    state: KeyState
    last_used_ns: int | None
    spent_nano: int
    limit_nano: int | None

    @property
    def spent_percent(self) -> int:
        return 0 if not self.limit_nano else min(100, 100 * self.spent_nano // self.limit_nano)


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A limit with its usage in the current span; None for limits without a span."""

    quota: Quota
    used: int | None
    ends_ns: int | None

    @property
    def metric(self) -> str:
        kind = f"{self.quota.measure} {self.quota.span or ''}".strip()
        return METRICS.get(kind, kind)

    @property
    def scope_words(self) -> str:
        return self.quota.scope.replace(":", " ", 1)

    @property
    def percent(self) -> int:
        if self.used is None or not self.quota.amount:
            return 0
        return min(100, 100 * self.used // self.quota.amount)


def state_of(row: KeyRow, users: Container[str], now_ns: int) -> KeyState:
    """Return the key's state. `users` are the existing users: keys of removed users are invalid."""
    ends_ns = row.terms.expires_ns
    if row.revoked_ns is not None:
        return "revoked"
    if row.user_id not in users:
        return "user removed"
    if ends_ns is None:
        return "valid"
    if ends_ns <= now_ns:
        return "expired"
    return "ends soon" if ends_ns - now_ns < _SOON_NS else "valid"


def key_lines(session: Session, rows: Sequence[KeyRow], users: Mapping[str, str]) -> list[KeyLine]:
    """Return lines for one page of keys, with a fixed number of database queries.

    `users` maps ids of existing users to their names.
    """
    now_ns = time.time_ns()
    ids = [row.key_id for row in rows]
    last_used, spent, limits = _last_used(session, ids), _month_spend(session, ids), _month_limits(session, ids)
    return [
        KeyLine(
            row,
            users.get(row.user_id, row.user_id),
            state_of(row, users, now_ns),
            last_used.get(row.key_id),
            spent.get(row.key_id, 0),
            limits.get(row.key_id),
        )
        for row in rows
    ]


def limit_lines(session: Session, scopes: Iterable[str]) -> list[LimitLine]:
    """Return every limit of these scopes, in the scopes' order."""
    order = {scope: place for place, scope in enumerate(scopes)}
    found = sorted(of_scopes(session, order), key=lambda quota: order[quota.scope])
    return [_limit_line(session, quota) for quota in found]


def _limit_line(session: Session, quota: Quota) -> LimitLine:
    if quota.span is None:
        return LimitLine(quota, None, None)
    begin_s, end_s = window(quota.span, time.time())
    return LimitLine(quota, used_in(session, CounterKey.of(quota), begin_s), end_s * _NS_PER_S)


def _last_used(session: Session, key_ids: list[str]) -> dict[str, int]:
    """Look up each key by index: grouping would read all of a key's rows."""
    used, key = usage_table.c, api_key_table.c
    last = select(func.max(used.started_ns)).where(used.key_id == key.key_id).scalar_subquery()
    rows = session.execute(select(key.key_id, last).where(key.key_id.in_(key_ids)))
    return {key_id: at_ns for key_id, at_ns in rows if at_ns is not None}


def _month_spend(session: Session, key_ids: list[str]) -> dict[str, int]:
    """Return what each key was charged this month, from the running daily sums, in nano-USD."""
    sums = usage_sum_table.c
    first_day = window("month", time.time())[0] // DAY_S
    scopes = [f"key:{key_id}" for key_id in key_ids]
    query = select(sums.scope, func.sum(sums.spend_nano)).where(sums.scope.in_(scopes), sums.day >= first_day)
    spent = session.execute(query.group_by(sums.scope))
    return {scope.removeprefix("key:"): int(nano) for scope, nano in spent}


def _month_limits(session: Session, key_ids: list[str]) -> dict[str, int]:
    found = of_scopes(session, [f"key:{key_id}" for key_id in key_ids])
    return {
        quota.scope.removeprefix("key:"): quota.amount
        for quota in found
        if (quota.measure, quota.span, quota.model) == ("spend", "month", None)
    }
