"""Queries for keys: with their users, and only while both are valid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, literal, literal_column, not_, or_, select
from sqlalchemy.orm import Session

from accounting.tables import usage_table
from gateway.identity import quotas
from gateway.identity.caller import Caller
from gateway.identity.key_rows import KeyRow, as_caller, as_row
from gateway.identity.tables import api_key_table, user_table
from gateway.identity.users import mentions
from gateway.settings.base import LaneName, Privacy
from runtime.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A filter for keys; None or an empty text selects all.

    `text` is searched in name, prefix, id and owner. `opens` selects the keys that are active now, or those that
    are not. Revoked keys whose names begin with `left_out` are left out.
    """

    user_id: str | None = None
    organization_id: str | None = None
    name: str | None = None
    lane: LaneName | None = None
    privacy: Privacy | None = None
    text: str = ""
    opens: bool | None = None
    left_out: str | None = None

    def conditions(self, now_ns: int) -> list[ColumnElement[bool]]:
        key = api_key_table.c
        equal = (
            (key.user_id, self.user_id),
            (user_table.c.organization_id, self.organization_id),
            (key.name, self.name),
            (key.privacy, self.privacy),
        )
        found: list[ColumnElement[bool]] = [column == value for column, value in equal if value is not None]
        if self.lane is not None:
            found.append((literal(",") + key.lanes + ",").contains(f",{self.lane},"))
        if self.text:
            found.append(mentions(self.text, key.name, key.prefix, key.key_id, key.user_id))
        if self.opens is not None:
            found.append(is_valid(now_ns) if self.opens else not_(is_valid(now_ns)))
        if self.left_out is not None:
            found.append(or_(key.revoked_ns.is_(None), not_(key.name.startswith(self.left_out, autoescape=True))))
        return found


ALL = KeyFilter()


def with_users() -> Select[Any]:
    owner = user_table.c
    joined = api_key_table.join(user_table, owner.user_id == api_key_table.c.user_id)
    return select(api_key_table, owner.organization_id, owner.role).select_from(joined)


def caller_of(
    session: Session, which: ColumnElement[bool], now_ns: int
) -> tuple[Row[Any], Caller] | tuple[None, None]:
    """Return the key and its caller; two times None unless the key is valid and its user exists."""
    row = session.execute(with_users().where(which, is_valid(now_ns))).one_or_none()
    if row is None:
        return None, None
    scopes = quotas.scopes_of(row.user_id, row.organization_id, row.department, key_id=row.key_id)
    return row, as_caller(row, tuple(quotas.of_scopes(session, scopes)))


def is_valid(now_ns: int) -> ColumnElement[bool]:
    column = api_key_table.c
    lasts = or_(column.expires_ns.is_(None), column.expires_ns > now_ns)
    return column.revoked_ns.is_(None) & lasts & user_table.c.removed_ns.is_(None)


def one(session: Session, key_id_or_prefix: str, *, valid_ns: int | None = None) -> KeyRow:
    """Return the key with this id or prefix, if given only one valid at `valid_ns`. Raises NotFound, Conflict."""
    query = with_users().where(named(key_id_or_prefix))
    if valid_ns is not None:
        query = query.where(is_valid(valid_ns))
    found = session.execute(query.limit(2)).all()
    if not found:
        raise NotFound(f"no {'active ' if valid_ns else ''}key has the ID or prefix {key_id_or_prefix}")
    if len(found) > 1:
        raise Conflict(f"several keys have the prefix {key_id_or_prefix}: use the ID of one")
    return as_row(found[0])


def names_of(session: Session, key_ids: Sequence[str]) -> dict[str, str]:
    """Return the names of these keys by id, including revoked keys."""
    query = select(api_key_table.c.key_id, api_key_table.c.name).where(api_key_table.c.key_id.in_(key_ids))
    return {row.key_id: row.name for row in session.execute(query)}


def named(key_id_or_prefix: str) -> ColumnElement[bool]:
    return (api_key_table.c.key_id == key_id_or_prefix) | (api_key_table.c.prefix == key_id_or_prefix)


def usage_of(users: str | Select[tuple[str]]) -> ColumnElement[bool]:
    """Return a condition for the usage rows of one user, or of all users of a query. It finds rows by their keys.
    Requests of a session have no key; a partial index finds their rows."""
    usage, keys = usage_table.c, api_key_table.c
    if isinstance(users, str):
        is_theirs, have_key = usage.user_id == users, keys.user_id == users
    else:
        is_theirs, have_key = usage.user_id.in_(users), keys.user_id.in_(users)
    # A literal, as in the partial index: the planner cannot know that a bound parameter is empty.
    has_no_key = usage.key_id == literal_column("''")
    return and_(is_theirs, or_(has_no_key, usage.key_id.in_(select(keys.key_id).where(have_key))))
