"""How keys are asked for: with the person whose they are, and only while both are valid."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Row, Select, literal, or_, select
from sqlalchemy.orm import Session

from gateway.errors import Conflict, NotFound
from gateway.identity import quotas
from gateway.identity.caller import Caller
from gateway.identity.key_rows import KeyRow, as_caller, as_row
from gateway.identity.tables import api_key_table, person_table


def with_people() -> Select[Any]:
    owner = person_table.c
    joined = api_key_table.join(person_table, owner.user_id == api_key_table.c.user_id)
    return select(api_key_table, owner.organization_id, owner.role).select_from(joined)


def caller_of(
    session: Session, which: ColumnElement[bool], now_ns: int
) -> tuple[Row[Any], Caller] | tuple[None, None]:
    """The key that is meant with whom it makes its bearer, while it is valid and its person is there."""
    row = session.execute(with_people().where(which, is_valid(now_ns))).one_or_none()
    if row is None:
        return None, None
    scopes = (f"key:{row.key_id}", f"person:{row.user_id}", f"organization:{row.organization_id}")
    return row, as_caller(row, tuple(quotas.of_scopes(session, scopes)))


def is_valid(now_ns: int) -> ColumnElement[bool]:
    column = api_key_table.c
    lasts = or_(column.expires_ns.is_(None), column.expires_ns > now_ns)
    return column.revoked_ns.is_(None) & lasts & person_table.c.removed_ns.is_(None)


def one(session: Session, key_id_or_prefix: str, *, valid_ns: int | None = None) -> KeyRow:
    """The key that is called so, of those valid at `valid_ns` where that is given. Raises NotFound, Conflict."""
    query = with_people().where(named(key_id_or_prefix))
    if valid_ns is not None:
        query = query.where(is_valid(valid_ns))
    found = session.execute(query.limit(2)).all()
    if not found:
        raise NotFound(f"no {'valid ' if valid_ns else ''}key has the id or prefix {key_id_or_prefix}")
    if len(found) > 1:
        raise Conflict(f"several keys have the prefix {key_id_or_prefix}: name one by its id")
    return as_row(found[0])


def named(key_id_or_prefix: str) -> ColumnElement[bool]:
    return (api_key_table.c.key_id == key_id_or_prefix) | (api_key_table.c.prefix == key_id_or_prefix)


def ids_used_by(people: Sequence[str] | Select[tuple[str]]) -> CompoundSelect[tuple[str]]:
    """What stands as their key in the rows of these people's requests: nothing where a session spoke for them."""
    theirs = select(api_key_table.c.key_id).where(api_key_table.c.user_id.in_(people))
    return theirs.union_all(select(literal("")))
