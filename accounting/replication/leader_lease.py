"""Hold the leader lease: one row of the database, valid for a few seconds at a time by the database's own clock.

Every statement is its own transaction, so a process that is frozen here holds no lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import Executable

from accounting.replication.errors import Deposed
from accounting.replication.tables import gateway_table, leader_table

LEASE_S = 4.0
"""A silent leader keeps the lease for this time, in seconds."""
REGISTERED_S = 120.0
"""A silent gateway stays registered for this time, in seconds."""

_EPOCH = select(leader_table.c.epoch).where(leader_table.c.id == 1).with_for_update(read=True)


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the leader lease, and whether the lease is still valid."""

    epoch: int
    holder: str
    address: str
    fingerprint: str
    is_live: bool


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
    """Register one process, and claim, renew and release the leader lease.

    Every method raises sqlalchemy.exc.SQLAlchemyError if the database fails.

    Args:
        open_session: returns sessions that may write.
        holder: a name for admins; the certificate's `fingerprint` tells processes apart.
        certificate: PEM.
        lease_s: how long a claim or a renewal is valid, in seconds.
    """

    def __init__(
        self, open_session: Callable[[], Session], holder: str, fingerprint: str, certificate: str, lease_s: float
    ) -> None:
        self._open_session = open_session
        self._holder = holder
        self._fingerprint = fingerprint
        self._certificate = certificate
        self._lease_ns = round(lease_s * 1e9)

    def register(self) -> None:
        """Register as a gateway that may send events, and remove gateways whose registration has expired."""
        expires_ns = _now_ns() + round(REGISTERED_S * 1e9)
        row = insert(gateway_table).values(
            fingerprint=self._fingerprint, certificate=self._certificate, expires_ns=expires_ns
        )
        self._execute(row.on_conflict_do_update(index_elements=["fingerprint"], set_={"expires_ns": expires_ns}))
        self._execute(delete(gateway_table).where(gateway_table.c.expires_ns < _now_ns()))

    def claim(self, address: str) -> int | None:
        """Take the lease if it is free and return its new epoch, else None.

        `address` is where this process takes events.
        """
        claimed = (
            update(leader_table)
            .where(leader_table.c.id == 1, leader_table.c.expires_ns < _now_ns())
            .values(
                epoch=leader_table.c.epoch + 1,
                holder=self._holder,
                address=address,
                fingerprint=self._fingerprint,
                expires_ns=_now_ns() + self._lease_ns,
            )
        )
        epoch: int | None = self._one(claimed.returning(leader_table.c.epoch))
        return epoch

    def renew(self, epoch: int) -> bool:
        """Keep the lease. Return False if another process has taken it."""
        renewed = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
        kept = renewed.values(expires_ns=_now_ns() + self._lease_ns).returning(leader_table.c.epoch)
        return self._one(kept) is not None

    def leave(self, epoch: int | None) -> None:
        """Release the lease if `epoch` is still current, and remove this gateway's registration."""
        self._execute(delete(gateway_table).where(gateway_table.c.fingerprint == self._fingerprint))
        if epoch is not None:
            mine = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
            self._execute(mine.values(expires_ns=0, address=""))

    def leader(self) -> Leader:
        """Return the current holder of the lease."""
        row = self._execute(
            select(
                leader_table.c.epoch,
                leader_table.c.holder,
                leader_table.c.address,
                leader_table.c.fingerprint,
                (leader_table.c.expires_ns >= _now_ns()).label("is_live"),
            ).where(leader_table.c.id == 1)
        )[0]
        return Leader(*row)

    def certificates(self) -> dict[str, str]:
        """Return every gateway's certificate (PEM) by its fingerprint."""
        rows = self._execute(
            select(gateway_table.c.fingerprint, gateway_table.c.certificate).where(
                gateway_table.c.expires_ns >= _now_ns()
            )
        )
        return dict(rows)

    def _one(self, statement: Executable) -> Any:
        rows = self._execute(statement)
        return rows[0][0] if rows else None

    def _execute(self, statement: Executable) -> list[Any]:
        with self._open_session() as session:
            connection = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            result = connection.execute(statement)
            return list(result) if result.returns_rows else []


def _now_ns() -> ColumnElement[int]:
    """Return the database's time in nanoseconds, with microsecond precision."""
    seconds = func.extract("epoch", func.clock_timestamp())
    return (seconds * 1_000_000).cast(BigInteger) * 1000
