"""Send groups of events through a table of the shared database, and answer them there; NOTIFY wakes the other side.

The table is UNLOGGED, so sending and answering wait for no sync to disk. A database that crashes empties it. That
loses nothing: the senders' connections break as well, and they send the same keys again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

ROWS_MAX = 128
"""Most groups in the outbox. A gateway sends one at a time, so this is also the number of gateways."""
ROWS_AT_ONCE = 32
"""Most groups that the leader takes by one statement."""
KEPT_S = 15
"""The leader drops a group of this age, in seconds. Its sender has given up before, or has died."""
SENT = "ledger_outbox"
"""The channel that wakes the leader. Each gateway has its own for replies.

Notifications carry nothing: any role of the database may send them.
"""

# Every statement is its own transaction, so a process that is frozen here holds no lock. None but the last reads
# groups that are older than KEPT_S: deleted ones pile up while a reader, such as a backup, needs an old state.
_SEND = """
WITH clock AS (SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint) * 1000 AS now_ns),
sent AS (
    INSERT INTO ledger_outbox (sent_ns, gateway, events)
    SELECT now_ns, %(gateway)s, %(events)s FROM clock
    WHERE (SELECT count(*) FROM ledger_outbox WHERE sent_ns > now_ns - %(kept_ns)s) < %(rows_max)s
    RETURNING sent_ns
)
SELECT sent_ns, pg_notify('ledger_outbox', '') FROM sent
"""
_RECEIVE = """
WITH answered AS (
    DELETE FROM ledger_outbox WHERE sent_ns = %(sent_ns)s AND gateway = %(gateway)s AND reply IS NOT NULL
    RETURNING reply
)
SELECT (SELECT reply FROM answered) FROM ledger_outbox WHERE sent_ns = %(sent_ns)s AND gateway = %(gateway)s
"""
_WITHDRAW = "DELETE FROM ledger_outbox WHERE sent_ns = %(sent_ns)s AND gateway = %(gateway)s"
_TAKE = """
SELECT sent_ns, gateway, events FROM ledger_outbox
WHERE sent_ns > CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint) * 1000 - %(kept_ns)s
AND reply IS NULL AND gateway <> %(gateway)s AND sent_ns <> ALL (CAST(%(taken)s AS bigint[]))
ORDER BY sent_ns, gateway LIMIT %(limit)s
"""
# The fence of `leader_lease`: a process that claims the lease waits for this statement, and then sees which groups
# are answered. Nothing that it writes has to survive a crash.
_ANSWER = """
WITH leader AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) FROM ledger_leader WHERE id = 1 AND epoch = %(epoch)s
    FOR SHARE
), answered AS (
    UPDATE ledger_outbox SET reply = answer.reply
    FROM leader, unnest(
        CAST(%(sent_ns)s AS bigint[]), CAST(%(gateways)s AS text[]), CAST(%(replies)s AS bytea[])
    ) AS answer (sent_ns, gateway, reply)
    WHERE ledger_outbox.sent_ns = answer.sent_ns AND ledger_outbox.gateway = answer.gateway
    AND ledger_outbox.reply IS NULL
    RETURNING ledger_outbox.gateway
)
SELECT pg_notify(gateway, '') FROM answered
"""
_DROP = """
DELETE FROM ledger_outbox
WHERE sent_ns <= CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint) * 1000 - %(kept_ns)s
RETURNING gateway
"""
_LIMITS = {"kept_ns": KEPT_S * 10**9, "rows_max": ROWS_MAX, "limit": ROWS_AT_ONCE}


class Sent(NamedTuple):
    """A group that waits for the leader. `sent_ns` and `gateway` are its key."""

    sent_ns: int
    gateway: str
    events: bytes


class Outbox:
    """One end of the outbox, with a connection of its own that is opened when it is first needed.

    Belongs to one thread. Every method but `close` raises sqlalchemy.exc.SQLAlchemyError if the database fails.

    Args:
        open_session: returns sessions that may write.
        gateway: the id of this process, which is also the channel of its replies.
        channel: whose notifications end `wait`; None for an end that never waits.
    """

    def __init__(self, open_session: Callable[[], Session], gateway: str, channel: str | None = None) -> None:
        self._open_session = open_session
        self._gateway = gateway
        self._channel = channel
        self._session: Session | None = None
        self._driver: psycopg.Connection[Any] | None = None

    def send(self, events: bytes) -> int | None:
        """Send a group and return its `sent_ns`, or None if the outbox is full."""
        rows = self._execute(_SEND, gateway=self._gateway, events=events)
        return rows[0][0] if rows else None

    def receive(self, sent_ns: int) -> bytes | None:
        """Take the reply to a group of this gateway. Return None if it is not answered.

        Raises KeyError if it is gone.
        """
        rows = self._execute(_RECEIVE, gateway=self._gateway, sent_ns=sent_ns)
        if not rows:
            raise KeyError(sent_ns)
        reply: bytes | None = rows[0][0]
        return reply

    def withdraw(self, sent_ns: int) -> None:
        """Delete a group that no caller waits for any more."""
        self._execute(_WITHDRAW, gateway=self._gateway, sent_ns=sent_ns)

    def take(self, taken: Sequence[int]) -> list[Sent]:
        """Return the oldest unanswered groups of other gateways, at most `ROWS_AT_ONCE`, except those `taken`."""
        return [Sent(*row) for row in self._execute(_TAKE, gateway=self._gateway, taken=taken)]

    def answer(self, epoch: int, replies: Sequence[tuple[Sent, bytes]]) -> None:
        """Write replies and wake their gateways, if `epoch` is still the ledger's.

        A reply to a group that is gone has no effect.
        """
        self._execute(
            _ANSWER,
            epoch=epoch,
            sent_ns=[sent.sent_ns for sent, _ in replies],
            gateways=[sent.gateway for sent, _ in replies],
            replies=[reply for _, reply in replies],
        )

    def drop_old(self) -> list[str]:
        """Delete the groups that are `KEPT_S` old, and return their gateways."""
        return [gateway for (gateway,) in self._execute(_DROP)]

    def wait(self, seconds: float) -> None:
        """Wait for a notification. One that came since the last wait ends this one at once."""
        with self._connected() as driver:
            for _ in driver.notifies(timeout=seconds, stop_after=1):
                pass

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        session, self._session, self._driver = self._session, None, None
        if session:
            # Not returned to the pool, where it would go on listening.
            session.invalidate()

    def _execute(self, statement: LiteralString, **values: object) -> list[Any]:
        with self._connected() as driver:
            cursor = driver.execute(statement, _LIMITS | values, prepare=True)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _connected(self) -> "Iterator[psycopg.Connection[Any]]":
        """Lend the driver's connection: SQLAlchemy would take half of the time of these statements.

        An error closes it.
        """
        try:
            if self._driver is None:
                self._driver = self._open()
            yield self._driver
        except psycopg.Error as error:
            self.close()
            raise OperationalError(None, None, error) from error
        except SQLAlchemyError:
            self.close()
            raise

    def _open(self) -> "psycopg.Connection[Any]":
        self._session = self._open_session()
        connection = self._session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        driver: Any = connection.connection.driver_connection
        # Every statement uses the key. The connection keeps plans that it made while the table was small.
        driver.execute("SET enable_seqscan = off")
        if self._channel:
            driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        opened: psycopg.Connection[Any] = driver
        return opened
