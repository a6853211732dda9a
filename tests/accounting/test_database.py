"""Engines and migrations, which the books stand on."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import SQLModel

from gateway.database import (
    DatabaseNewer,
    DatabaseUnsupported,
    DatabaseUnusable,
    open_engine,
    open_upgraded,
    parse_dsn,
    read_sessions,
    revisions,
    upgrade,
    write_sessions,
)
from gateway.upgrading import upgrade_aside
from tests.databases import Databases, Kind


@pytest.fixture
def empty_dsn(databases: Databases, kind: Kind) -> Iterator[str]:
    with databases.database(kind, migrated=False) as dsn:
        yield dsn


def _upgrade(dsn: str, start: threading.Barrier, errors: list[Exception]) -> None:
    engine = open_engine(dsn)
    start.wait(30)
    try:
        upgrade(engine)
    except Exception as error:  # noqa: BLE001  what any of them raises is what the test is about
        errors.append(error)
    engine.dispose()


def test_several_that_start_at_once_migrate_once_to_what_the_code_expects(empty_dsn: str) -> None:
    errors: list[Exception] = []
    start = threading.Barrier(4)
    threads = [threading.Thread(target=_upgrade, args=(empty_dsn, start, errors)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    engine = open_engine(empty_dsn)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []
    engine.dispose()


def test_another_process_brings_tables_up_to_date(empty_dsn: str) -> None:
    asyncio.run(upgrade_aside(empty_dsn))
    engine = open_engine(empty_dsn)
    with engine.connect() as connection:
        seen = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    assert seen == revisions()[-1]


def test_another_process_says_why_it_cannot(tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/books.db"
    with sqlite3.connect(tmp_path / "books.db") as connection:
        connection.execute("CREATE TABLE account (id TEXT)")
    with pytest.raises(DatabaseUnusable, match="the database cannot be used"):
        asyncio.run(upgrade_aside(dsn))


def test_a_database_of_a_newer_version_is_left_alone(engine: Engine) -> None:
    with write_sessions(engine)() as session, session.begin():
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseNewer, match="9999"):
        upgrade(engine)


def test_a_reader_sees_one_moment_while_the_writer_goes_on(engine: Engine) -> None:
    seen = text("SELECT version_num FROM alembic_version")
    with read_sessions(engine)() as reader:
        before = reader.scalar(seen)
        with write_sessions(engine)() as writer, writer.begin():
            writer.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert reader.scalar(seen) == before


def test_a_reader_cannot_write(engine: Engine) -> None:
    with read_sessions(engine)() as reader, pytest.raises(DBAPIError):
        reader.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with write_sessions(engine)() as writer, writer.begin():
        writer.execute(text("UPDATE alembic_version SET version_num = '9999'"))


def test_sqlite_survives_a_power_cut_and_checks_its_references(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'books.db'}")
    with engine.connect() as connection:
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in SQLITE}
    engine.dispose()
    assert pragmas == SQLITE


SQLITE = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


@pytest.mark.parametrize("dsn", ["postgres://u:p@h/d", "postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"])
def test_every_way_to_write_postgresql_means_psycopg(dsn: str) -> None:
    assert parse_dsn(dsn).render_as_string(hide_password=False) == "postgresql+psycopg://u:p@h/d"


@pytest.mark.parametrize(
    "dsn", ["", "secret", "sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "sqlite+aiosqlite:///x"]
)
def test_other_databases_are_refused_without_repeating_the_dsn(dsn: str) -> None:
    with pytest.raises(DatabaseUnsupported) as refusal:
        parse_dsn(dsn)
    assert "secret" not in str(refusal.value)


def test_what_cannot_be_opened_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear books, I am no database.")
    unusable = (f"sqlite:///{tmp_path}/letter.db", "postgresql://u:secret@127.0.0.1:9/d", "mysql://u:secret@h/d")
    for dsn in unusable:
        with pytest.raises(DatabaseUnusable) as refusal:
            open_upgraded(dsn)
        assert "secret" not in str(refusal.value)
        assert "\n" not in str(refusal.value)
