"""The filter for rows of the request log, and how to page through them, newest first."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal, literal_column, or_, select, tuple_

from accounting.tables import usage_table
from gateway.billing.tables import request_table
from gateway.identity.tables import api_key_table, user_table
from gateway.pages import Cursor

SCANNED_MAX = 100_000
"""The maximum number of rows that one page searches: rare matches in a long log take several pages."""
WALKED_MAX = 2000
"""The number of newest rows searched first for requests of some users: the index of their keys would read and sort
all requests that they ever made."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Conditions on the rows; None matches all.

    `model` matches the requested or the answering model. `status` is a range, both ends included. The time goes
    from `since_ns` to before `until_ns`. `user_id` and `organization_id` limit the visible requests: those of all
    their keys, and those that they made in the console without a key.
    """

    lane: str | None = None
    model: str | None = None
    key_id: str | None = None
    status: tuple[int, int] | None = None
    outcome: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    user_id: str | None = None
    organization_id: str | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether an index leads from one matching row to the next, so that no other rows are read."""
        picks = (self.lane, self.model, self.status, self.outcome, self.user_id, self.organization_id)
        return all(pick is None for pick in picks)

    @property
    def is_of_users(self) -> bool:
        """Whether it covers several keys, whose rows are separate in the index."""
        return self.key_id is None and not (self.user_id is None and self.organization_id is None)


def first_out_of_sight(before: Cursor | None) -> Select[Any]:
    """Return the start of the oldest row that one page searches, if there are more rows."""
    started = request_table.c.started_ns
    query = select(started).order_by(started.desc()).offset(SCANNED_MAX - 1).limit(1)
    return query if before is None else query.where(older_than(before))


def among_newest(filters: RequestFilter) -> list[ColumnElement[bool]]:
    """Return the conditions for matches among the newest `WALKED_MAX` rows, which are read one by one."""
    started = request_table.c.started_ns
    first = select(started).order_by(started.desc()).offset(WALKED_MAX - 1).limit(1).scalar_subquery()
    return [*conditions(filters, is_walked=True), started >= func.coalesce(first, 0)]


def conditions(filters: RequestFilter, *, is_walked: bool = False) -> list[ColumnElement[bool]]:
    """Return the conditions; `is_walked` keeps databases from using the index of users' keys."""
    column = request_table.c
    found: list[ColumnElement[bool]] = []
    for name in ("lane", "key_id", "outcome"):
        value = getattr(filters, name)
        if value is not None:
            found.append(column[name] == value)
    if filters.model is not None:
        found.append(or_(column.model == filters.model, column.served_model == filters.model))
    if filters.status is not None:
        found.append(column.status.between(*filters.status))
    if filters.since_ns is not None:
        found.append(column.started_ns >= filters.since_ns)
    if filters.until_ns is not None:
        found.append(column.started_ns < filters.until_ns)
    if filters.user_id is not None:
        found.append(_is_of(select(literal(filters.user_id)), is_walked))
    if filters.organization_id is not None:
        members = select(user_table.c.user_id).where(user_table.c.organization_id == filters.organization_id)
        found.append(_is_of(members, is_walked))
    return found


def older_than(before: Cursor) -> ColumnElement[bool]:
    place = tuple_(request_table.c.started_ns, request_table.c.request_id)
    return place < (before.at_ns, before.name)


def _is_of(users: Select[tuple[str]], is_walked: bool) -> ColumnElement[bool]:
    """Match these users' requests. The log has their keys; for sessions without a key the ledger has the user."""
    keys = select(api_key_table.c.key_id).where(api_key_table.c.user_id.in_(users))
    usage = usage_table.c
    in_sessions = select(usage.request_id).where(usage.key_id == literal_column("''"), usage.user_id.in_(users))
    column = request_table.c
    key_id = column.key_id.concat("") if is_walked else column.key_id
    return or_(key_id.in_(keys), (key_id == "") & column.request_id.in_(in_sessions))
