"""What no block can tell: rows before the first event, and whether the database's file agrees with itself."""

from collections.abc import Iterator

from sqlalchemy import Connection, select

from accounting.tables import event_table, transfer_table, usage_table

_SHOWN_MAX = 5


def before_first(connection: Connection) -> list[int]:
    """Numbers below 1 that rows have as their event, the first few of them."""
    found: list[int] = []
    for column in (event_table.c.seq, transfer_table.c.event_seq, usage_table.c.event_seq):
        found += connection.scalars(select(column).where(column < 1).limit(_SHOWN_MAX))
    return found


def storage_problems(connection: Connection) -> Iterator[str]:
    """What SQLite finds wrong with its file: an index that says something else than its table, a torn page.

    Rows are read by indexes: one that lies would show what its table has not. PostgreSQL reads the table for every
    row that an index finds, and `pg_amcheck` is its own program for the rest.
    """
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql(f"PRAGMA integrity_check({_SHOWN_MAX})").scalars():
            if line != "ok":
                yield str(line)
