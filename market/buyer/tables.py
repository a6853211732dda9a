"""The tables of buying.db, and how it is opened: every commit is a full sync."""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
)

VERSION = 2

metadata = MetaData()

channel_table = Table(
    "channel",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seller", Text, nullable=False, index=True),
    Column("buyer", Text, nullable=False),
    Column("backing", Text, nullable=False),
    Column("records", LargeBinary, nullable=False),
    Column("limit_nano", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)
job_table = Table(
    "job",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("request_id", Text, nullable=False, index=True),
    Column("model", Text, nullable=False),
    Column("ceiling_nano", BigInteger, nullable=False),
    Column("voucher", LargeBinary, nullable=False),
    Column("receipt", LargeBinary),
    Column("progress", LargeBinary),
    Column("amount_nano", BigInteger),
    Column("is_reported", Boolean, nullable=False, default=False),
    Column("flags", Text, nullable=False, default=""),
    Column("began_ms", BigInteger, nullable=False),
)
track_table = Table(
    "track",
    metadata,
    Column("seller", Text, primary_key=True),
    Column("good", Float, nullable=False),
    Column("bad", Float, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("anomalies", Integer, nullable=False, default=0),
    Column("tokens", Float),
    Column("since_s", Float),
)
booked_table = Table("booked_audit", metadata, Column("request_id", Text, primary_key=True))
unbooked_table = Table("unbooked_request", metadata, Column("request_id", Text, primary_key=True))
# Channels whose newest receipts the marketplace may lack; `changes` counts receipts since it had all of them.
unsubmitted_table = Table(
    "unsubmitted_channel",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("changes", BigInteger, nullable=False),
)
fact_table = Table("fact", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

# Columns missing in files of version 1. SQLite accepts a column without a type; its values keep their own.
_ADDED = (("job", "progress"), ("track", "tokens"), ("track", "since_s"))


def opened(path: Path) -> Engine:
    """Open the database and migrate it. Raises RuntimeError if a newer version wrote the file."""
    path.touch(mode=0o600, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 5.0, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    with engine.begin() as connection:
        _migrate(connection)
    return engine


def _prepare(connection: Any, _: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _migrate(connection: Connection) -> None:
    """Raises RuntimeError if a newer version wrote the file."""
    found = connection.exec_driver_sql("PRAGMA user_version").scalar() or 0
    if found > VERSION:
        raise RuntimeError(f"buying.db has version {found}, but this Millrace knows only {VERSION}. Upgrade it.")
    metadata.create_all(connection)
    for table, column in _ADDED:
        names = {row.name for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")}
        if column not in names:
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column}")
    connection.exec_driver_sql(f"PRAGMA user_version={VERSION}")
