"""The fence of a chore: inside of its transaction, so that nobody who has lost the seat commits anything.

It is the same whatever keeps the seat. The database remembers the highest epoch that came: once a successor has
written, or where the database keeps the seat has taken it, everybody before it is refused.
"""

from sqlalchemy import Connection, text

from market.coordination.coordinator import Deposed, Seat

_PASS = text(
    "INSERT INTO coordination_seat (name, epoch, holder, expires_ns) VALUES (:name, :epoch, '', 0)"
    " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE coordination_seat.epoch <= excluded.epoch"
    " RETURNING epoch"
)


def fence(connection: Connection, seat: Seat) -> None:
    """Let the transaction on only while no higher epoch is known, and keep higher ones waiting until it has ended.

    Raises:
        Deposed: another process has taken the seat.
    """
    if connection.execute(_PASS, {"name": seat.name, "epoch": seat.epoch}).first() is None:
        raise Deposed(f"epoch {seat.epoch} of {seat.name} has ended")


def highest_epoch(connection: Connection, name: str) -> int:
    """The highest that is known here: `above` for `acquire` where the coordinator may have been made anew."""
    found = text("SELECT epoch FROM coordination_seat WHERE name = :name")
    return connection.execute(found, {"name": name}).scalar() or 0
