"""Fence a job's transaction, so that no process commits after it has lost the lease.

The fence is independent of where the lease is stored. The database remembers the highest epoch. It refuses older
epochs after a successor has written, or, if the database stores the lease, has taken it.
"""

from sqlalchemy import Connection, text

from gateway.coordination.coordinator import Deposed, HeldLease

_PASS = text(
    "INSERT INTO coordination_lease (name, epoch, holder, expires_ns) VALUES (:name, :epoch, '', 0)"
    " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE coordination_lease.epoch <= excluded.epoch"
    " RETURNING epoch"
)


def fence(connection: Connection, lease: HeldLease) -> None:
    """Let the transaction go on only while no higher epoch is known, and make higher ones wait until it ends.

    Raises:
        Deposed: another process has taken the lease.
    """
    if connection.execute(_PASS, {"name": lease.name, "epoch": lease.epoch}).first() is None:
        raise Deposed(f"epoch {lease.epoch} of {lease.name} has ended")


def highest_epoch(connection: Connection, name: str) -> int:
    """Return the highest known epoch: `above` for `acquire`, in case the coordinator's data was lost."""
    found = text("SELECT epoch FROM coordination_lease WHERE name = :name")
    return connection.execute(found, {"name": name}).scalar() or 0
