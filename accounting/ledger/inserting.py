"""Many rows into one table with few statements, as tuples in the order of the table's columns.

On SQLite Python gives its lock away at every statement and takes it back after: with a statement for each row, a
writer beside a busy event loop would wait for its turn as often as there are rows. On PostgreSQL each parameter
costs a conversion, so that many rows go as one JSON text.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, Table

Row: TypeAlias = tuple[Any, ...]

# Long enough that statements cost little beside their rows; well below the parameters that a statement may have.
_ROWS_A_STATEMENT = 64
_ROWS_AS_JSON = 8
_encode = msgspec.json.Encoder().encode


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert every row, or raise what the database raises at the first that it refuses."""
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
    return f"INSERT INTO {_into(table)} VALUES {', '.join([row] * rows)}"  # noqa: S608  names of ours


@lru_cache(maxsize=64)
def _json_statement(table: Table) -> str:
    values = ", ".join(_value(number, column.type) for number, column in enumerate(table.columns))
    return f"INSERT INTO {_into(table)} SELECT {values} FROM jsonb_array_elements(%s::jsonb)"  # noqa: S608  as above


def _into(table: Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'"{table.name}" ({names})'


def _value(number: int, column_type: Any) -> str:
    """How a row's value of that number is read; bytes travel in base64, as msgspec writes them."""
    value = f"value ->> {number}"
    if isinstance(column_type, LargeBinary):
        return f"decode({value}, 'base64')"
    if isinstance(column_type, BigInteger):
        return f"({value})::bigint"
    return f"({value})::integer" if isinstance(column_type, Integer) else value
