"""Check what no block covers: rows before the first event, and whether the database's file is consistent."""

from collections.abc import Iterator

from sqlalchemy import Connection, select

from accounting.tables import event_table, transfer_table, usage_table

_SHOWN_MAX = 5


def before_first(connection: Connection) -> list[int]:
    """Return the first few event numbers below 1 that rows have."""
    found: list[int] = []
    for column in (event_table.c.seq, transfer_table.c.event_seq, usage_table.c.event_seq):
        found += connection.scalars(select(column).where(column < 1).limit(_SHOWN_MAX))
    return found


def storage_problems(connection: Connection) -> Iterator[str]:
    """Yield SQLite's findings about its file: an index that differs from its table, a torn page.

    Rows are read by indexes, and a wrong index would show rows that the table does not have. PostgreSQL reads the
    table for every row that an index finds; its own program `pg_amcheck` checks the rest.
    """
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql(f"PRAGMA integrity_check({_SHOWN_MAX})").scalars():
            if line != "ok":
                yield str(line)
