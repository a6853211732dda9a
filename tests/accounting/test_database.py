"""Engines and migrations, on which the ledger rests."""

import asyncio
import os
import select
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import SQLModel

import migrations
from accounting.payments.tables import Payer
from gateway.database import DatabaseUnusable, is_behind, open_upgraded, revisions, upgrade
from gateway.upgrade import upgrade_in_process
from runtime.database import (
    DatabaseUnsupported,
    DatabaseVersionUnknown,
    allow_s,
    open_engine,
    parse_dsn,
    read_sessions,
    write_sessions,
)
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
    asyncio.run(upgrade_in_process(empty_dsn))
    engine = open_engine(empty_dsn)
    with engine.connect() as connection:
        seen = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    assert seen == revisions()[-1]


def test_another_process_says_why_it_cannot(tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/ledger.db"
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("CREATE TABLE account (id TEXT)")
    with pytest.raises(DatabaseUnusable, match="the database cannot be used"):
        asyncio.run(upgrade_in_process(dsn))


def test_a_database_of_a_newer_version_is_left_alone(engine: Engine) -> None:
    with write_sessions(engine)() as session, session.begin():
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseVersionUnknown, match="9999"):
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
    engine = open_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    with engine.connect() as connection:
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in SQLITE}
    engine.dispose()
    assert pragmas == SQLITE


SQLITE = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}


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


@contextmanager
def _reached_by_tcp(dsn: str) -> Iterator[str]:
    """The DSN of a door that passes every byte on to the database's own socket."""
    url = make_url(dsn)
    folder = str(url.query["host"])
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def carry() -> None:
            caller, _ = listening.accept()
            inner = socket.socket(socket.AF_UNIX)
            # If one end closes, the other may still be sending.
            with caller, inner, suppress(OSError):
                inner.connect(f"{folder}/.s.PGSQL.5432")
                while ready := select.select([caller, inner], [], [])[0]:
                    content = ready[0].recv(65_536)
                    if not content:
                        return
                    (inner if ready[0] is caller else caller).sendall(content)

        threading.Thread(target=carry, daemon=True).start()
        there = url.set(host="127.0.0.1", port=listening.getsockname()[1], query={})
        yield there.render_as_string(hide_password=False)


def test_a_postgresql_that_vanished_without_a_word_is_found_out(databases: Databases) -> None:
    """Lost packets cannot be simulated here; the test checks that the system's keepalive settings are short."""
    with databases.database("postgresql", migrated=False) as dsn, _reached_by_tcp(dsn) as by_tcp:
        engine = open_engine(by_tcp)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver
            with socket.socket(fileno=os.dup(driver.fileno())) as line:
                unheard_ms = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                idle_s, every_s, probes = (
                    line.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        engine.dispose()
    assert 0 < unheard_ms <= 10_000
    assert idle_s + every_s * probes <= 10


def test_what_cannot_be_opened_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear ledger, I am no database.")
    unusable = (f"sqlite:///{tmp_path}/letter.db", "postgresql://u:secret@127.0.0.1:9/d", "mysql://u:secret@h/d")
    for dsn in unusable:
        with pytest.raises(DatabaseUnusable) as refusal:
            open_upgraded(dsn)
        assert "secret" not in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_a_damaged_schema_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    open_upgraded(f"sqlite:///{file}").dispose()
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"CREATE TABLE alembic_version") + len("CREATE TABLE al")] ^= 0x80
    file.write_bytes(raw)
    with pytest.raises(DatabaseUnusable):
        open_upgraded(f"sqlite:///{file}")
    assert not is_behind(f"sqlite:///{file}")


def test_a_long_look_may_take_longer_than_other_statements(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        with read_sessions(engine)() as session:
            allow_s(session, 1800)
        return
    bound = text("SHOW statement_timeout")
    with read_sessions(engine)() as session:
        allow_s(session, 1800)
        assert session.scalar(bound) == "30min"
    with read_sessions(engine)() as session:
        assert session.scalar(bound) == "30s"


_SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("payer", sa.Column("nickname", sa.Text, nullable=False, server_default="none"))
    op.create_table("letter", sa.Column("id", sa.Text, primary_key=True))
    {last}
"""


def _add_migration(folder: Path, monkeypatch: pytest.MonkeyPatch, last: str = "") -> None:
    """Give this process's Millrace a second migration, as a later version would have one."""
    later = folder / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, later)
    (later / "versions" / "0004_later.py").write_text(_SECOND.format(last=last))
    monkeypatch.setattr(migrations, "__file__", str(later / "__init__.py"))


def _found(engine: Engine) -> tuple[str, bool, bool]:
    """The revision, and whether the column and the table of the second migration are there."""
    with engine.connect() as connection:
        found = inspect(connection)
        columns = {column["name"] for column in found.get_columns("payer")}
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        return revision, "nickname" in columns, found.has_table("letter")


def test_a_later_version_upgrades_the_tables_and_an_older_one_then_refuses_them(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(empty_dsn)
    upgrade(engine)
    with write_sessions(engine)() as session, session.begin():
        session.add(Payer(user_id="ann", customer_id="cus_1"))
    assert not is_behind(empty_dsn)
    with monkeypatch.context() as later:
        _add_migration(tmp_path, later)
        assert is_behind(empty_dsn)
        upgrade(engine)
        assert not is_behind(empty_dsn)
        assert _found(engine) == ("0004", True, True)
        upgrade(engine)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT user_id, customer_id, nickname FROM payer")).all()
    assert rows == [("ann", "cus_1", "none")]
    assert not is_behind(empty_dsn)
    with pytest.raises(DatabaseVersionUnknown, match="0004"):
        upgrade(engine)
    engine.dispose()


def test_a_migration_that_fails_changes_nothing(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(empty_dsn)
    upgrade(engine)
    _add_migration(tmp_path, monkeypatch, last='op.execute("SELECT * FROM nothing")')
    with pytest.raises(DatabaseUnusable, match="the database cannot be used"):
        open_upgraded(empty_dsn)
    assert _found(engine) == ("0003", False, False)
    assert is_behind(empty_dsn)
    engine.dispose()
