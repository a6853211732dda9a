"""Hold the leader lease: one row of the database, valid for a few seconds at a time by the database's own clock.

Every statement is its own transaction, so a process that is frozen here holds no lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import Executable

from accounting.replication.errors import Deposed
from accounting.replication.tables import leader_table

LEASE_S = 4.0
"""A silent leader keeps the lease for this time, in seconds."""

_EPOCH = select(leader_table.c.epoch).where(leader_table.c.id == 1).with_for_update(read=True)


@dataclass(frozen=True, slots=True)
class Leader:
    """The last holder of the leader lease. `holder` is a name for admins."""

    epoch: int
    holder: str


def fence(connection: Connection, epoch: int) -> None:
    """Let the transaction go on only while `epoch` is current, and keep it current until the transaction ends.

    A process that claims the lease waits for this transaction. `Journal` makes sure that it cannot stay open for
    long.

    Raises:
        Deposed: another process has taken the lease.
    """
    seen = connection.execute(_EPOCH).scalar_one()
    if seen != epoch:
        raise Deposed(f"epoch {epoch} of the ledger has ended: {seen} has begun")


class LeaderLease:
    """Claim, renew and release the leader lease.

    Every method raises sqlalchemy.exc.SQLAlchemyError if the database fails.

    Args:
        open_session: returns sessions that may write.
        holder: this process's name for admins.
        lease_s: how long a claim or a renewal is valid, in seconds.
    """

    def __init__(self, open_session: Callable[[], Session], holder: str, lease_s: float) -> None:
        self._open_session = open_session
        self._holder = holder
        self._lease_ns = round(lease_s * 1e9)

    def claim(self) -> int | None:
        """Take the lease if it is free and return its new epoch, else None."""
        claimed = (
            update(leader_table)
            .where(leader_table.c.id == 1, leader_table.c.expires_ns < _now_ns())
            .values(epoch=leader_table.c.epoch + 1, holder=self._holder, expires_ns=_now_ns() + self._lease_ns)
        )
        rows = self._execute(claimed.returning(leader_table.c.epoch))
        return rows[0].epoch if rows else None

    def renew(self, epoch: int) -> bool:
        """Keep the lease. Return False if another process has taken it."""
        renewed = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
        kept = renewed.values(expires_ns=_now_ns() + self._lease_ns).returning(leader_table.c.epoch)
        return bool(self._execute(kept))

    def leave(self, epoch: int) -> None:
        """Release the lease if `epoch` is still current."""
        mine = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
        self._execute(mine.values(expires_ns=0))

    def leader(self) -> Leader:
        """Return the last holder of the lease."""
        query = select(leader_table.c.epoch, leader_table.c.holder).where(leader_table.c.id == 1)
        row = self._execute(query)[0]
        return Leader(row.epoch, row.holder)

    def _execute(self, statement: Executable) -> list[Row[Any]]:
        with self._open_session() as session:
            connection = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            result = connection.execute(statement)
            return list(result) if result.returns_rows else []


def _now_ns() -> ColumnElement[int]:
    """Return the database's time in nanoseconds, with microsecond precision."""
    seconds = func.extract("epoch", func.clock_timestamp())
    return (seconds * 1_000_000).cast(BigInteger) * 1000
