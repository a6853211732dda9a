"""Coordinate gateways that share a database: SQLite on one machine, PostgreSQL otherwise.

PostgreSQL uses its own clock. On SQLite all processes use the machine's clock.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from sqlalchemy import BigInteger, case, delete, func, literal, or_, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from gateway.coordination.coordinator import (
    ENTRIES_MAX,
    CoordinatorEntry,
    CoordinatorUnavailable,
    EntryChange,
    HeldLease,
    check_entry,
    check_key,
    check_ttl,
    differences,
)
from gateway.coordination.tables import clock_table, entry_table, lease_table

POLL_S = 0.5

T = TypeVar("T")

_OPEN_LEASE = text(
    "INSERT INTO coordination_lease (name, epoch, holder, expires_ns) VALUES (:name, 0, '', 0)"
    " ON CONFLICT (name) DO NOTHING"
)
_NEW = (
    "INSERT INTO coordination_entry (key, value, revision, expires_ns)"
    " VALUES (:key, :value, :revision, :expires_ns) ON CONFLICT (key) DO "
)
_WRITE = text(
    _NEW + "UPDATE SET value = excluded.value, revision = excluded.revision, expires_ns = excluded.expires_ns"
)
_WRITE_NEW = text(_NEW + "NOTHING RETURNING revision")
_lease, _entry, _clock = lease_table.c, entry_table.c, clock_table.c


class DatabaseCoordinator:
    """Implement `gateway.coordination.coordinator.Coordinator`. Statements run in threads.

    Args:
        read, write: return sessions.
        poll_s: how often a watch reads the entries, in seconds.
    """

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], *, poll_s: float = POLL_S
    ) -> None:
        self._open_read = read
        self._open_write = write
        self._poll_s = poll_s

    async def acquire(self, name: str, ttl_s: float, *, above: int = 0) -> HeldLease | None:
        check_key(name)
        check_ttl(ttl_s)
        token = secrets.token_hex(16)

        def take(session: Session) -> int | None:
            session.execute(_OPEN_LEASE, {"name": name})
            now_ns = _now_ns(session)
            higher = case((_lease.epoch < above, above), else_=_lease.epoch) + 1
            taken = update(lease_table).where(_lease.name == name, _lease.expires_ns < now_ns)
            values = {"epoch": higher, "holder": token, "expires_ns": now_ns + _ns(ttl_s)}
            found: int | None = session.scalar(taken.values(values).returning(_lease.epoch))
            return found

        epoch = await self._ask(self._open_write, take)
        return None if epoch is None else HeldLease(name, epoch, token, ttl_s)

    async def renew(self, lease: HeldLease) -> bool:
        def keep(session: Session) -> bool:
            now_ns = _now_ns(session)
            mine = update(lease_table).where(*_held(lease), _lease.expires_ns >= now_ns)
            kept = mine.values(expires_ns=now_ns + _ns(lease.ttl_s)).returning(_lease.epoch)
            return session.scalar(kept) is not None

        return await self._ask(self._open_write, keep)

    async def release(self, lease: HeldLease) -> None:
        leaving = update(lease_table).where(*_held(lease)).values(expires_ns=0, holder="")
        await self._ask(self._open_write, lambda session: session.execute(leaving))

    async def put(
        self, key: str, value: bytes, *, revision: int | None = None, ttl_s: float | None = None
    ) -> int | None:
        check_entry(key, value, ttl_s)

        def write(session: Session) -> int | None:
            new = _next_revision(session)
            expires_ns = session.scalar(select(_now_ns(session) + _ns(ttl_s))) if ttl_s else None
            row = {"key": key, "value": value, "revision": new, "expires_ns": expires_ns}
            if revision is None:
                session.execute(_WRITE, row)
                return new
            changed = update(entry_table).where(_entry.key == key, _entry.revision == revision).values(row)
            found: int | None = (
                session.scalar(changed.returning(_entry.revision)) if revision else session.scalar(_WRITE_NEW, row)
            )
            return found

        return await self._ask(self._open_write, write)

    async def get(self, key: str) -> CoordinatorEntry | None:
        check_key(key)
        return next(iter(await self._found(_entry.key == key)), None)

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        check_key(key)

        def remove(session: Session) -> bool:
            _next_revision(session)
            gone = delete(entry_table).where(_entry.key == key)
            if revision is not None:
                gone = gone.where(_entry.revision == revision)
            return session.scalar(gone.returning(_entry.key)) is not None

        return await self._ask(self._open_write, remove)

    async def entries(self, prefix: str) -> list[CoordinatorEntry]:
        check_key(prefix)
        return await self._found(_entry.key.startswith(prefix, autoescape=True))

    async def watch(self, prefix: str) -> AsyncGenerator[EntryChange]:
        check_key(prefix)
        known: dict[str, CoordinatorEntry] = {}
        while True:
            try:
                found = {entry.key: entry for entry in await self.entries(prefix)}
            except CoordinatorUnavailable:
                found = known
            for change in differences(known, found):
                yield change
            known = found
            await asyncio.sleep(self._poll_s)

    async def aclose(self) -> None:
        """Do nothing: no connection stays open between two calls."""

    async def _found(self, which: ColumnElement[bool]) -> list[CoordinatorEntry]:
        def read(session: Session) -> list[CoordinatorEntry]:
            is_there = or_(_entry.expires_ns.is_(None), _entry.expires_ns >= _now_ns(session))
            rows = select(_entry.key, _entry.value, _entry.revision).where(which, is_there).limit(ENTRIES_MAX)
            return sorted(
                (CoordinatorEntry(key, bytes(value), revision) for key, value, revision in session.execute(rows)),
                key=lambda entry: entry.key,
            )

        return await self._ask(self._open_read, read)

    async def _ask(self, open_session: Callable[[], Session], act: Callable[[Session], T]) -> T:
        def work() -> T:
            with open_session() as session, session.begin():
                return act(session)

        try:
            return await asyncio.to_thread(work)
        except SQLAlchemyError as error:
            raise CoordinatorUnavailable(
                f"the database of the coordinator failed: {type(error).__name__}"
            ) from error


def _held(lease: HeldLease) -> tuple[ColumnElement[bool], ...]:
    return _lease.name == lease.name, _lease.epoch == lease.epoch, _lease.holder == lease.token


def _next_revision(session: Session) -> int:
    """Return the next revision, locked until the transaction ends, and delete expired entries."""
    found = update(clock_table).values(revision=_clock.revision + 1).returning(_clock.revision)
    revision: int = session.scalars(found).one()
    session.execute(delete(entry_table).where(_entry.expires_ns < _now_ns(session)))
    return revision


def _now_ns(session: Session) -> ColumnElement[int]:
    if session.get_bind().dialect.name == "postgresql":
        seconds = func.extract("epoch", func.clock_timestamp())
        return (seconds * 1_000_000).cast(BigInteger) * 1000
    return literal(time.time_ns(), BigInteger)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
