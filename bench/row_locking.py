"""Run a plain ledger on PostgreSQL for comparison: lock, read, check and update rows, one transaction per event.

This is what most services do: as many connections as clients, and `SELECT ... FOR UPDATE` in the order of the ids
against deadlocks. Then it inserts the event and its transfers and updates the balances. Like Millrace it has keys
and refuses overdrafts. It has no triggers, no usage rows, and no proof that its balances are the sum of its
transfers.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Engine

SCHEMA = """
    CREATE TABLE plain_account (
      id INT PRIMARY KEY, balance BIGINT NOT NULL, held BIGINT NOT NULL CHECK (held >= 0 AND held <= balance)
    ) WITH (fillfactor = 50);
    CREATE TABLE plain_event (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key TEXT NOT NULL UNIQUE);
    CREATE TABLE plain_transfer (
      id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event BIGINT NOT NULL REFERENCES plain_event,
      debit INT NOT NULL REFERENCES plain_account, credit INT NOT NULL REFERENCES plain_account,
      amount BIGINT NOT NULL CHECK (amount > 0)
    );
    INSERT INTO plain_account
      SELECT id, CASE id WHEN 0 THEN 1000000000000000 ELSE 0 END, 0 FROM generate_series(0, 999) AS id
"""
PAYER, FEE, FIRST_SELLER = 0, 1, 2
_TRANSFER = "INSERT INTO plain_transfer (event, debit, credit, amount) VALUES (%s, %s, %s, %s)"
_WRONG = """
    SELECT count(*) FROM plain_account AS a WHERE balance <> CASE id WHEN 0 THEN 1000000000000000 ELSE 0 END
      + (SELECT coalesce(sum(amount), 0) FROM plain_transfer WHERE credit = a.id)
      - (SELECT coalesce(sum(amount), 0) FROM plain_transfer WHERE debit = a.id)
"""
_TRANSFERS = _TRANSFER + ", (%s, %s, %s, %s)"


class RowLocking:
    """A separate set of tables beside the ledger, and a connection for each client."""

    def __init__(self, engine: Engine, charge_nano: int, fee_nano: int) -> None:
        self._charge_nano, self._fee_nano = charge_nano, fee_nano
        self._parameters: dict[str, Any] = dict(engine.dialect.create_connect_args(engine.url)[1])
        with self._connect() as connection:
            connection.execute(SCHEMA)
        self._connections: dict[int, psycopg.Connection] = {}

    def purchase(self, name: str, seller: int, timed: Callable[[float], None]) -> None:
        """Hold and capture, one event after the other. `timed` receives the seconds of each."""
        connection = self._of(seller)
        for act in (self._hold, self._capture):
            began_s = time.perf_counter()
            with connection.transaction():
                act(connection, name, FIRST_SELLER + seller, self._charge_nano, self._fee_nano)
            timed(time.perf_counter() - began_s)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def is_sound(self) -> bool:
        """Return whether nothing was lost: every balance is the sum of its transfers."""
        with self._connect() as connection:
            (wrong,) = _one(connection, _WRONG)
        return bool(wrong == 0)

    @staticmethod
    def _hold(connection: psycopg.Connection, name: str, _: int, amount_nano: int, __: int) -> None:
        balance, held = _one(connection, "SELECT balance, held FROM plain_account WHERE id = %s FOR UPDATE", PAYER)
        if balance - held < amount_nano:
            raise ValueError("not enough")
        _event(connection, f"hold:{name}")
        connection.execute("UPDATE plain_account SET held = held + %s WHERE id = %s", (amount_nano, PAYER))

    @staticmethod
    def _capture(connection: psycopg.Connection, name: str, seller: int, amount_nano: int, fee_nano: int) -> None:
        lock = "SELECT id FROM plain_account WHERE id IN (%s, %s, %s) ORDER BY id FOR UPDATE"
        connection.execute(lock, (PAYER, FEE, seller))
        event = _event(connection, f"cap:{name}")
        net_nano = amount_nano - fee_nano
        connection.execute(_TRANSFERS, (event, PAYER, seller, net_nano, event, PAYER, FEE, fee_nano))
        update = "UPDATE plain_account SET balance = balance + %s, held = held - %s WHERE id = %s"
        connection.execute(update, (-amount_nano, amount_nano, PAYER))
        connection.execute(update, (net_nano, 0, seller))
        connection.execute(update, (fee_nano, 0, FEE))

    def _of(self, client: int) -> psycopg.Connection:
        if client not in self._connections:
            self._connections[client] = self._connect()
        return self._connections[client]

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(**self._parameters, autocommit=True)


def _one(connection: psycopg.Connection, query: str, *values: object) -> tuple[Any, ...]:
    row = connection.execute(query.encode(), values).fetchone()
    assert row
    return row


def _event(connection: psycopg.Connection, key: str) -> int:
    return int(_one(connection, "INSERT INTO plain_event (key) VALUES (%s) RETURNING id", key)[0])
