"""The leader's seat: one row of the database, held for a few seconds at a time, by the database's own clock.

Every statement stands by itself and is committed at once, so that a process that is frozen here holds no lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import Executable

from accounting.leading.errors import Deposed
from accounting.leading.tables import gateway_table, leader_table

LEASE_S = 4.0
"""How long a leader that says nothing keeps the seat, in seconds."""
REGISTERED_S = 120.0
"""How long a gateway that says nothing stays known, in seconds."""

_EPOCH = select(leader_table.c.epoch).where(leader_table.c.id == 1).with_for_update(read=True)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who has the seat, and whether its time has not run out."""

    epoch: int
    holder: str
    address: str
    fingerprint: str
    is_live: bool


def fence(connection: Connection, epoch: int) -> None:
    """Let the transaction on only while `epoch` is the seat's, and keep it so until the transaction has ended.

    Whoever wants the seat waits for this transaction; `Journal` sees to it that it cannot be left open for long.

    Raises:
        Deposed: another process has taken the seat.
    """
    seen = connection.execute(_EPOCH).scalar_one()
    if seen != epoch:
        raise Deposed(f"epoch {epoch} of the books has ended: {seen} has begun")


class Seat:
    """One process's way to the seat. Every method raises sqlalchemy.exc.SQLAlchemyError when the database fails.

    Args:
        open_session: gives sessions that may write.
        holder: a name for people; the certificate's `fingerprint` is what tells processes apart.
        certificate: PEM.
        lease_s: how long a claim and a renewal hold, in seconds.
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
        """Be known to the others as one who may send events, and forget who has been silent for long."""
        expires_ns = _now_ns() + round(REGISTERED_S * 1e9)
        row = insert(gateway_table).values(
            fingerprint=self._fingerprint, certificate=self._certificate, expires_ns=expires_ns
        )
        self._execute(row.on_conflict_do_update(index_elements=["fingerprint"], set_={"expires_ns": expires_ns}))
        self._execute(delete(gateway_table).where(gateway_table.c.expires_ns < _now_ns()))

    def claim(self, address: str) -> int | None:
        """Take the seat if nobody has it, and return its new epoch; `address` is where events are taken."""
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
        """Keep the seat; False where another process has taken it."""
        renewed = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
        kept = renewed.values(expires_ns=_now_ns() + self._lease_ns).returning(leader_table.c.epoch)
        return self._one(kept) is not None

    def leave(self, epoch: int | None) -> None:
        """Give the seat back, where `epoch` is still the seat's, and be no longer known to the others."""
        self._execute(delete(gateway_table).where(gateway_table.c.fingerprint == self._fingerprint))
        if epoch is not None:
            mine = update(leader_table).where(leader_table.c.id == 1, leader_table.c.epoch == epoch)
            self._execute(mine.values(expires_ns=0, address=""))

    def leader(self) -> Leader:
        """Who has the seat now."""
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
        """Every gateway's certificate (PEM) by its fingerprint."""
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
    """The database's clock, to the microsecond."""
    seconds = func.extract("epoch", func.clock_timestamp())
    return (seconds * 1_000_000).cast(BigInteger) * 1000
