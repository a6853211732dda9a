"""Read the ledger's rows in the order of their events, as the driver returns them: there are millions."""

from collections.abc import Generator, Iterator, Sequence
from itertools import count, groupby
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import Connection, select
from sqlalchemy.exc import OperationalError

from accounting.proofs.canonical import EVENT_COLUMNS, TRANSFER_COLUMNS, USAGE_COLUMNS, Row
from accounting.tables import account_table

Entry: TypeAlias = tuple[Row, Sequence[Row], Sequence[Row]]
"""An event, its transfers by leg, and its usage rows. `accounting.proofs.canonical` lists the columns."""

LAST_NUMBER = 2**63 - 1

_CODES_MAX = 65_536
_STRAYS_MAX = 20
_ROWS_A_FETCH = 1_000
_event_seq = itemgetter(0)
_cursors = count(1)


class RowsUnreadable(RuntimeError):
    """Raised when the database returned some rows and fails at the next one."""


class AccountCodes(dict[int, str]):
    """Codes of accounts by id, as JSON strings, read on first use: an account never changes its code.

    A missing account gets `?`, which the chart does not have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection | None = None
        """The connection to read from. Set before each use, because this object outlives connections."""

    def __missing__(self, account_id: int) -> str:
        assert self.connection is not None
        found = select(account_table.c.code).where(account_table.c.id == account_id)
        code = self.connection.scalar(found)
        if code is None:
            return '"?"'
        if len(self) >= _CODES_MAX:
            self.clear()
        self[account_id] = quoted = encode_basestring(code)
        return quoted


class Entries:
    """Read the events of a range of numbers, both ends included, in order, with all that belongs to them.

    Use it inside one transaction, and close it before that ends. After the last event, `strays` has the first few
    missing events of the range that still have rows.
    """

    def __init__(self, connection: Connection, first_seq: int, last_seq: int) -> None:
        bounds = (first_seq, last_seq)
        self.strays: list[int] = []
        self._events = _rows(connection, "event", EVENT_COLUMNS, "seq", bounds)
        self._transfers = _rows(connection, "transfer", TRANSFER_COLUMNS, "event_seq, leg", bounds)
        self._usages = _rows(connection, "usage", USAGE_COLUMNS, "event_seq", bounds)

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None:
        for rows in (self._events, self._transfers, self._usages):
            rows.close()

    def __iter__(self) -> Iterator[Entry]:
        transfers, usages = _Groups(self._transfers), _Groups(self._usages)
        transfers_of, usages_of = transfers.of, usages.of
        for event in self._events:
            yield event, transfers_of(event[0]), usages_of(event[0])
        self.strays = sorted({*transfers.rest(), *usages.rest()})[:_STRAYS_MAX]


class _Groups:
    """Return rows by their events, one event at a time."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._groups = groupby(rows, _event_seq)
        self._strays: list[int] = []
        self._advance()

    def of(self, event_seq: int) -> Sequence[Row]:
        """Return the rows of an event. Events must be requested in order, each once."""
        if self._seq > event_seq:
            return ()
        while self._seq < event_seq:
            self._skip()
        if self._seq != event_seq:
            return ()
        rows = self._rows
        self._advance()
        return rows

    def rest(self) -> Sequence[int]:
        """Read to the end and return the first few events that were not requested."""
        while self._seq <= LAST_NUMBER:
            self._skip()
        return self._strays

    def _skip(self) -> None:
        if len(self._strays) < _STRAYS_MAX:
            self._strays.append(self._seq)
        self._advance()

    def _advance(self) -> None:
        seq, rows = next(self._groups, (LAST_NUMBER + 1, iter(())))
        self._seq, self._rows = seq, list(rows)


def _rows(
    connection: Connection, table: str, columns: Sequence[str], order: str, bounds: tuple[int, int]
) -> Generator[Row]:
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    key = order.partition(",")[0]
    statement = (
        f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608  own names
        f" WHERE {key} BETWEEN {mark} AND {mark} ORDER BY {order}"
    )
    cursor = _cursor(connection)
    try:
        cursor.execute(statement, bounds)
        while some := cursor.fetchmany(_ROWS_A_FETCH):
            yield from some
    except connection.dialect.loaded_dbapi.Error as error:
        if connection.dialect.is_disconnect(error, None, cursor):
            raise OperationalError(statement, bounds, error, connection_invalidated=True) from error
        raise RowsUnreadable(f"{table}: {error}") from error
    finally:
        cursor.close()


def _cursor(connection: Connection) -> Any:
    """Return the driver's own cursor, which returns plain tuples, in the connection's transaction."""
    driver_connection = connection.connection.driver_connection
    assert driver_connection is not None
    if connection.dialect.name == "postgresql":
        # Use a server-side cursor: otherwise the driver would read all rows before it returns the first.
        return driver_connection.cursor(name=f"entries_{next(_cursors)}")
    return driver_connection.cursor()
