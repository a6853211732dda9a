"""Stored limits: admins set and delete them, and each key is read with those that apply to it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, literal, or_, select
from sqlalchemy.orm import Session

from accounting.errors import AmountInvalid
from accounting.money import format_usd, parse_usd
from gateway.identity import audit
from gateway.identity.audit import MACHINE, Actor
from gateway.identity.races import refusing_what_others_did
from gateway.identity.tables import api_key_table, organization_table, quota_table, user_table
from gateway.identity.users import checked_id
from gateway.quota import Measure, Quota, Span
from runtime.errors import NotFound, RequestInvalid

# Spans that each measure is counted over; concurrency counts requests in flight.
SPANS: dict[Measure, tuple[Span | None, ...]] = {
    "requests": ("minute", "day", "month"),
    "tokens": ("minute", "day", "month"),
    "concurrency": (None,),
    "spend": ("day", "month"),
}
SCOPES = "key:ID, user:ID, team:ORGANIZATION/NAME or organization:ID"
COUNT_MAX = 10**15
QUOTAS_MAX = 10_000


def parse_quota(scope: str, measure: Measure, amount: str, span: Span | None, model: str | None) -> Quota:
    """Parse a limit as users write it: dollars as a decimal string for spend, else a whole number.

    Raises:
        RequestInvalid: the limit is not valid; the error names the field.
    """
    if span not in SPANS[measure]:
        known = " or ".join(span for span in SPANS[measure] if span) or "none"
        raise RequestInvalid(f"span: {measure} is limited per {known}", param="span")
    try:
        count = parse_usd(amount) if measure == "spend" else _count(amount)
    except AmountInvalid as error:
        raise RequestInvalid(f"amount: {error}", param="amount") from None
    return Quota(scope, measure, count, span, model or None)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= COUNT_MAX):
        raise AmountInvalid(f"a whole number from 0 to {COUNT_MAX}")
    return int(text)


def facts(quota: Quota) -> dict[str, Any]:
    """Return a limit as users see it, with the amount as `parse_quota` reads it."""
    amount = format_usd(quota.amount) if quota.measure == "spend" else str(quota.amount)
    return {
        "scope": quota.scope,
        "measure": quota.measure,
        "span": quota.span,
        "model": quota.model,
        "amount": amount,
    }


def scopes_of(user_id: str, organization_id: str, department: str, *, key_id: str = "") -> tuple[str, ...]:
    """Return the scopes whose limits apply to a user's requests. A console session has no key."""
    scopes = (f"user:{user_id}", f"team:{organization_id}/{department}", f"organization:{organization_id}")
    return (f"key:{key_id}", *scopes) if key_id else scopes


def of_scopes(session: Session, scopes: Iterable[str]) -> list[Quota]:
    """Return every limit that applies to these scopes."""
    column = quota_table.c
    query = select(quota_table).where(column.scope.in_(tuple(scopes)))
    ordered = query.order_by(column.scope, column.measure, column.span, column.model)
    return [_as_quota(row) for row in session.execute(ordered)]


class Quotas:
    """The limits of keys, users, teams and organizations."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._write = write

    def rows(
        self,
        organization_id: str | None = None,
        measure: Measure | None = None,
        *,
        offset: int = 0,
        limit: int = QUOTAS_MAX,
    ) -> list[Quota]:
        """Return all limits, or those of an organization, its users, teams and keys; at most QUOTAS_MAX."""
        column = quota_table.c
        ordered = select(quota_table).order_by(column.scope, column.measure, column.span, column.model)
        query = ordered.where(*_conditions(organization_id, measure)).offset(offset).limit(min(limit, QUOTAS_MAX))
        with self._read() as session:
            return [_as_quota(row) for row in session.execute(query)]

    def scopes(
        self,
        organization_id: str | None = None,
        measure: Measure | None = None,
        *,
        offset: int = 0,
        limit: int = QUOTAS_MAX,
    ) -> list[str]:
        """Return the distinct scopes of the limits in `rows`; at most QUOTAS_MAX after `offset`."""
        scope = quota_table.c.scope
        query = select(scope).where(*_conditions(organization_id, measure)).distinct().order_by(scope)
        with self._read() as session:
            return list(session.scalars(query.offset(offset).limit(min(limit, QUOTAS_MAX))))

    def teams(self, organization_id: str) -> list[str]:
        """Return the teams of an organization that have limits; at most QUOTAS_MAX."""
        scope = quota_table.c.scope
        query = select(scope).where(_is_team_of(organization_id)).distinct().order_by(scope).limit(QUOTAS_MAX)
        with self._read() as session:
            return list(session.scalars(query))

    def of(self, scopes: Sequence[str]) -> list[Quota]:
        with self._read() as session:
            return of_scopes(session, scopes)

    def organization_of(self, scope: str) -> str:
        """Return the organization of a scope. Raises NotFound if it has none, RequestInvalid if it is no scope."""
        with self._read() as session:
            return _organization_of(session, scope)

    def set(self, quota: Quota, by: Actor = MACHINE) -> None:
        """Set a limit, replacing one on the same scope, measure, span and model. Raises NotFound."""
        with refusing_what_others_did("another admin set this limit"), self._write() as session, session.begin():
            organization_id = _organization_of(session, quota.scope)
            before = _take(session, quota)
            values = _key_of(quota) | {"amount": quota.amount}
            session.execute(quota_table.insert().values(values))
            _record(session, by, "quota.set", organization_id, before, quota)

    def remove(self, quota: Quota, by: Actor = MACHINE) -> None:
        """Delete a limit of any amount. Raises NotFound."""
        with self._write() as session, session.begin():
            organization_id = _organization_of(session, quota.scope)
            before = _take(session, quota)
            if before is None:
                raise NotFound(f"{quota.scope} has no such limit")
            _record(session, by, "quota.remove", organization_id, before, None)


def _take(session: Session, quota: Quota) -> Quota | None:
    same = [quota_table.c[name] == value for name, value in _key_of(quota).items()]
    found = session.execute(select(quota_table).where(*same)).one_or_none()
    session.execute(delete(quota_table).where(*same))
    return None if found is None else _as_quota(found)


def _record(
    session: Session, by: Actor, action: str, organization_id: str, before: Quota | None, after: Quota | None
) -> None:
    quota = after or before
    assert quota, "an action is on a limit"
    audit.record(
        session,
        by,
        action,
        quota.scope,
        organization_id=organization_id,
        before=facts(before) if before else None,
        after=facts(after) if after else None,
    )


def _organization_of(session: Session, scope: str) -> str:
    kind, _, name = scope.partition(":")
    if kind == "team":
        name, _, team = name.partition("/")
        checked_id(team, "scope")
    organization = organization_table.c.organization_id
    user = user_table.c
    queries = {
        "organization": select(organization).where(organization == name),
        "team": select(organization).where(organization == name),
        "user": select(user.organization_id).where(user.user_id == name),
        "key": select(user.organization_id)
        .join(api_key_table, api_key_table.c.user_id == user.user_id)
        .where(api_key_table.c.key_id == name),
    }
    if kind not in queries:
        raise RequestInvalid(f"scope: {SCOPES}", param="scope")
    found: str | None = session.scalar(queries[kind])
    if found is None:
        raise NotFound(f"{'organization' if kind == 'team' else kind} {name} not found")
    return found


def _conditions(organization_id: str | None, measure: Measure | None) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [] if measure is None else [quota_table.c.measure == measure]
    return found if organization_id is None else [*found, _is_of(organization_id)]


def _is_of(organization_id: str) -> ColumnElement[bool]:
    scope, user, key = quota_table.c.scope, user_table.c, api_key_table.c
    users = select(literal("user:") + user.user_id).where(user.organization_id == organization_id)
    keys = select(literal("key:") + key.key_id).join(user_table, user.user_id == key.user_id)
    return or_(
        scope == f"organization:{organization_id}",
        _is_team_of(organization_id),
        scope.in_(users),
        scope.in_(keys.where(user.organization_id == organization_id)),
    )


def _is_team_of(organization_id: str) -> ColumnElement[bool]:
    """Match a team's limits by scope, not by keys: a team may have a limit before it has a key."""
    beginning = f"team:{organization_id}/"
    return func.substr(quota_table.c.scope, 1, len(beginning)) == beginning


def _key_of(quota: Quota) -> dict[str, str]:
    return {
        "scope": quota.scope,
        "measure": quota.measure,
        "span": quota.span or "",
        "model": quota.model or "",
    }


def _as_quota(row: Any) -> Quota:
    return Quota(row.scope, row.measure, row.amount, row.span or None, row.model or None)
