"""The audit log: who did what to whom, when and from where; written in the transaction that does it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.identity.caller import HOME
from gateway.identity.tables import audit_table

PAGE_MAX = 500
_ONCE_LOCK = 0x61756474


@dataclass(frozen=True, slots=True)
class Actor:
    """The acting party as the log names it: `user:ann`, or `machine` for anyone who can read the data directory."""

    name: str
    address: str = ""


MACHINE = Actor("machine")


@dataclass(frozen=True, slots=True)
class Entry:
    """One action. `before` and `after` are the changed values, without secrets; None if there were none."""

    seq: int
    at_ns: int
    actor: str
    address: str
    action: str
    target: str
    organization_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects entries that match all of these fields; None matches everything."""

    organization_id: str | None = None
    action: str | None = None
    actor: str | None = None
    target: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None


def record(
    session: Session,
    by: Actor,
    action: str,
    target: str,
    *,
    organization_id: str = HOME,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Record one action in the transaction that does it, so that neither exists without the other."""
    row = {
        "at_ns": time.time_ns(),
        "actor": by.name,
        "address": by.address,
        "action": action,
        "target": target,
        "organization_id": organization_id,
        "before": _stored(before),
        "after": _stored(after),
    }
    session.execute(audit_table.insert().values(row))


class AuditLog:
    """Reads the log; `add` records actions that have no transaction in this database."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._write = write

    def add(self, by: Actor, action: str, target: str, after: dict[str, Any] | None = None) -> None:
        """Record an action on an object outside the database, such as a machine of the cluster."""
        with self._write() as session, session.begin():
            record(session, by, action, target, after=after)

    def add_once(self, by: Actor, action: str, target: str, after: dict[str, Any], *, named_by: str) -> None:
        """Record an action that the ledger has booked, unless the log has it already.

        A caller that crashed between the two steps repeats its request and is told that it is booked.
        `named_by` is the field of `after` that identifies the action.
        """
        name = {named_by: after[named_by]}
        column = audit_table.c
        # SQLite's LIKE ignores case, so compare the rows that it finds.
        fragment = (_stored(name) or "")[1:-1]
        query = select(column.after).where(
            column.target == target, column.action == action, column.after.contains(fragment, autoescape=True)
        )
        with self._write() as session, session.begin():
            if session.get_bind().dialect.name == "postgresql":
                session.execute(select(func.pg_advisory_xact_lock(_ONCE_LOCK, func.hashtext(target))))
            if not any(orjson.loads(found).get(named_by) == after[named_by] for found in session.scalars(query)):
                record(session, by, action, target, after=after)

    def entries(self, filters: Filter, *, before_seq: int | None = None, limit: int = 100) -> list[Entry]:
        """Return entries, newest first, at most PAGE_MAX; `before_seq` is the last one of the previous page."""
        column = audit_table.c
        query = select(audit_table).order_by(column.seq.desc()).limit(min(limit, PAGE_MAX))
        for name in ("organization_id", "action", "actor", "target"):
            if (value := getattr(filters, name)) is not None:
                query = query.where(column[name] == value)
        if filters.since_ns is not None:
            query = query.where(column.at_ns >= filters.since_ns)
        if filters.until_ns is not None:
            query = query.where(column.at_ns < filters.until_ns)
        if before_seq is not None:
            query = query.where(column.seq < before_seq)
        with self._read() as session:
            return [_entry(row) for row in session.execute(query).mappings()]


def _stored(value: dict[str, Any] | None) -> str | None:
    return (
        None if value is None else orjson.dumps(msgspec.to_builtins(value), option=orjson.OPT_SORT_KEYS).decode()
    )


def _entry(row: Any) -> Entry:
    known = dict(row)
    for name in ("before", "after"):
        known[name] = None if known[name] is None else orjson.loads(known[name])
    return Entry(**known)
