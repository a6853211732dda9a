"""Insert many rows into one table with few statements. A row is a tuple in the order of the table's columns.

On SQLite, Python releases its lock at every statement and takes it back afterwards. With a statement per row, a
writer beside a busy event loop would wait for the lock once per row. On PostgreSQL each parameter costs a
conversion, so the rows travel together as one JSON text.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, Table

Row: TypeAlias = tuple[Any, ...]

# Long enough that a statement's cost is small beside its rows'; far below the limit of parameters per statement.
_ROWS_A_STATEMENT = 64
_ROWS_AS_JSON = 8
_encode = msgspec.json.Encoder().encode


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert every row. Raises the database's error at the first row that it refuses."""
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql and len(rows) >= _ROWS_AS_JSON:
        connection.exec_driver_sql(_json_statement(table), (_encode(rows).decode(),))
        return
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        some = rows[start : start + _ROWS_A_STATEMENT]
        statement = _statement(table, len(some), "%s" if is_postgresql else "?")
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(some)))


@lru_cache(maxsize=512)
def _statement(table: Table, rows: int, mark: str) -> str:
    row = f"({', '.join([mark] * len(table.columns))})"
    return f"INSERT INTO {_into(table)} VALUES {', '.join([row] * rows)}"  # noqa: S608  our own names


@lru_cache(maxsize=64)
def _json_statement(table: Table) -> str:
    values = ", ".join(_value(number, column.type) for number, column in enumerate(table.columns))
    return f"INSERT INTO {_into(table)} SELECT {values} FROM jsonb_array_elements(%s::jsonb)"  # noqa: S608  as above


def _into(table: Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'"{table.name}" ({names})'


def _value(number: int, column_type: Any) -> str:
    """Return the SQL that reads a row's value of that number. Bytes are in base64, as msgspec writes them."""
    value = f"value ->> {number}"
    if isinstance(column_type, LargeBinary):
        return f"decode({value}, 'base64')"
    if isinstance(column_type, BigInteger):
        return f"({value})::bigint"
    return f"({value})::integer" if isinstance(column_type, Integer) else value
