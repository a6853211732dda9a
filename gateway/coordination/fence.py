"""Fence a job's transaction, so that no process commits after it has lost the seat.

The fence is independent of where the seat is stored. The database remembers the highest epoch that came. Older
ones are refused once a successor has written, or, if the database stores the seat, has taken it.
"""

from sqlalchemy import Connection, text

from gateway.coordination.coordinator import Deposed, HeldLease

_PASS = text(
    "INSERT INTO coordination_lease (name, epoch, holder, expires_ns) VALUES (:name, :epoch, '', 0)"
    " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE coordination_lease.epoch <= excluded.epoch"
    " RETURNING epoch"
)


def fence(connection: Connection, seat: HeldLease) -> None:
    """Let the transaction go on only while no higher epoch is known, and make higher ones wait until it ends.

    Raises:
        Deposed: another process has taken the seat.
    """
    if connection.execute(_PASS, {"name": seat.name, "epoch": seat.epoch}).first() is None:
        raise Deposed(f"epoch {seat.epoch} of {seat.name} has ended")


def highest_epoch(connection: Connection, name: str) -> int:
    """Return the highest known epoch: `above` for `acquire`, in case the coordinator's data was lost."""
    found = text("SELECT epoch FROM coordination_lease WHERE name = :name")
    return connection.execute(found, {"name": name}).scalar() or 0
