"""Engines and sessions on SQLite and PostgreSQL.

This module begins SQLite transactions itself: the standard library's driver opens them too late for savepoints
and never with the write lock. Writers take that lock first (BEGIN IMMEDIATE). A transaction that reads first and
locks later is refused without waiting if another one committed in between.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

_READ, _WRITE = "read", "write"
# The use of a session, as an option of its engine.
_USE = "millrace_use"
_BUSY_TIMEOUT_S = 10
_WAL_PAUSE_S = 0.02
_LOCK_TIMEOUT_S = 5


# Detect a server that vanished behind a network that drops everything, in about ten seconds, whether an answer
# or an acknowledgement is outstanding.
_SILENCE = {
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class DatabaseUnsupported(ValueError):
    """The DSN names a database that Millrace does not run on. The message leaves it out: DSNs hold passwords."""


class DatabaseVersionUnknown(RuntimeError):
    """The tables are of another version of Millrace, mostly a newer one. This one must not write to them."""


def parse_dsn(dsn: str) -> URL:
    """Read a DSN; `postgres://` and `postgresql://` mean PostgreSQL through psycopg 3, `sqlite:///` a file.

    Raises:
        DatabaseUnsupported: another kind of database, SQLite in memory, or no DSN at all.
    """
    try:
        url = make_url(dsn)
    except ArgumentError:
        raise DatabaseUnsupported("the database setting is not a DSN such as sqlite:///file.db") from None
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise DatabaseUnsupported(f"{url.drivername} is not supported: use sqlite:///... or postgresql://...")
    if url.database in (None, "", ":memory:"):
        raise DatabaseUnsupported("a database in memory would be lost with the process: name a file")
    return url


def open_engine(dsn: str, *, pool_size: int = 8) -> Engine:
    """Return an engine for a DSN as `parse_dsn` reads it; connects on first use.

    SQLite runs in WAL mode with full sync: what is committed survives a power cut. PostgreSQL statements and
    lock waits are bounded, here as well as at the server: a frozen server blocks no caller longer. At most twice
    `pool_size` connections are open, and the wait for one is bounded.
    """
    url = parse_dsn(dsn)
    if url.drivername == "sqlite":
        engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=_BUSY_TIMEOUT_S,
            # The one used last knows its statements and has its pages at hand.
            pool_use_lifo=True,
            connect_args={"timeout": _BUSY_TIMEOUT_S},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        _keep_to_file(engine, Path(url.database or ""))
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # psycopg warns of each batch that the database refuses; the sender gets the error anyway.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    # SQLite's owners need none of it.
    from runtime.postgresql import CONNECT_TIMEOUT_S, STATEMENT_TIMEOUT_S, Server

    bounds = f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c lock_timeout={_LOCK_TIMEOUT_S}s"
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
        # Overrides the server's default: a transaction that waited for a lock must see what the holder committed.
        isolation_level="READ COMMITTED",
        connect_args=_SILENCE
        | {"connect_timeout": CONNECT_TIMEOUT_S, "options": bounds, "application_name": "millrace"},
    )
    server = Server()
    event.listen(engine, "do_connect", lambda _dialect, _record, words, named: server.connect(*words, **named))
    event.listen(engine, "checkin", _expect_usual_statements)
    _close_late_returns(engine)
    return engine


def open_file(path: Path, tables: Sequence[Table], version: int, *, pool_size: int = 8) -> Engine:
    """Open a SQLite file of one process with these tables, made on first use and readable by its owner alone.

    At most twice `pool_size` connections are open. Raises DatabaseVersionUnknown if the tables are of another version.
    """
    path.touch(mode=0o600, exist_ok=True)
    engine = open_engine(f"sqlite:///{path}", pool_size=pool_size)
    with engine.begin() as connection:
        found = connection.exec_driver_sql("PRAGMA user_version").scalar()
        if found not in (0, version):
            raise DatabaseVersionUnknown(
                f"{path.name} was written by another version of Millrace. Start that version."
            )
        tables[0].metadata.create_all(connection, tables)
        connection.exec_driver_sql(f"PRAGMA user_version = {version}")
    return engine


class Commits:
    """Numbers what any process commits to a SQLite file, so that pollers read only after a commit.

    SQLite keeps this number in shared memory: reading it takes 10 us, a query a millisecond. For PostgreSQL there is
    none. Threads may share it; it is closed with its engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        if engine.dialect.name == "sqlite":
            # It never waits for a lock: event loops ask, too.
            self._connection = sqlite3.connect(str(engine.url.database), timeout=0, check_same_thread=False)
            event.listen(engine, "engine_disposed", lambda _: self._close())

    def latest(self) -> int | None:
        """Return a number that differs after every commit; None if it is unknown: then read in any case."""
        # A query afterwards tells what is wrong with the file.
        with self._lock, suppress(sqlite3.Error):
            if self._connection is not None:
                return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        return None

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def no_commits() -> None:
    """Stand in for `Commits.latest` if every poll should read."""


def _close_late_returns(engine: Engine) -> None:
    """Close a connection that a thread still used when the engine was disposed of, once it is returned."""
    is_disposed = threading.Event()
    event.listen(engine, "engine_disposed", lambda _: is_disposed.set())
    event.listen(engine, "checkin", lambda _, entry: entry.invalidate() if is_disposed.is_set() else None)


def _expect_usual_statements(connection: Any, _: ConnectionPoolEntry) -> None:
    if connection is not None:  # None: the connection was discarded.
        connection.allow(None)


def _prepare_sqlite(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None
    _use_wal(connection)
    # The system holds the pages, too: half a megabyte a connection loses nothing, two would be 5 MB in all.
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -512"):
        connection.execute(f"PRAGMA {pragma}").close()


def _keep_to_file(engine: Engine, path: Path) -> None:
    """Refuse commits to a deleted or replaced file: SQLite would keep writing to it and lose the data."""
    known: list[tuple[int, int]] = []

    def check() -> None:
        try:
            found = path.stat()
        except OSError:
            found = None
        if found is None or known != [(found.st_dev, found.st_ino)]:
            reason = sqlite3.OperationalError("the database file was removed or replaced")
            raise OperationalError("COMMIT", None, reason)

    def on_connect(_: sqlite3.Connection, __: ConnectionPoolEntry) -> None:
        if not known:
            found = path.stat()
            known.append((found.st_dev, found.st_ino))
        check()

    def on_commit(connection: Connection) -> None:
        if connection.get_execution_options().get(_USE) == _WRITE:
            check()

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "commit", on_commit)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, with retries: SQLite refuses all but one of several connections to a new file at once."""
    until_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > until_s:
                raise
            time.sleep(_WAL_PAUSE_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    use = connection.get_execution_options().get(_USE)
    # Connections change between uses. Each pragma makes SQLite parse its statements again, so send only
    # changes.
    if connection.info.get(_USE, "") != use:
        connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if use == _READ else 'OFF'}")
        connection.info[_USE] = use
    connection.exec_driver_sql("BEGIN IMMEDIATE" if use == _WRITE else "BEGIN")


def write_sessions(engine: Engine) -> Callable[[], Session]:
    """Return a factory of sessions that may write; on SQLite each waits for the one write lock when it begins."""
    return sessionmaker(writing(engine), expire_on_commit=False)


def read_sessions(engine: Engine) -> Callable[[], Session]:
    """Return a factory of sessions that only read, and see one moment of the database however long they do."""
    options: dict[str, Any] = {_USE: _READ}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return sessionmaker(engine.execution_options(**options), expire_on_commit=False)


def allow_s(session: Session, seconds: int) -> None:
    """Set the time limit of the transaction's statements, in seconds; SQLite's have no limit."""
    if session.get_bind().dialect.name == "postgresql":
        bound_statements(session.connection(), seconds)


def bound_statements(connection: Connection, seconds: int) -> None:
    """Set the time limit of a PostgreSQL transaction's statements, in seconds."""
    connection.execute(text(f"SET LOCAL statement_timeout = '{seconds:d}s'"))
    driver: Any = connection.connection.driver_connection
    driver.allow(seconds)


def writing(engine: Engine) -> Engine:
    """Return the engine with transactions that may write."""
    return engine.execution_options(**{_USE: _WRITE})
