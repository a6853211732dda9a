"""Read how far an allocation of the market is drawn, from the ledger alone."""

from dataclasses import dataclass

from sqlalchemy import select

from accounting import chart
from accounting.ledger.balances import Reader
from accounting.rules.allocations import Drawn
from accounting.rules.parts import HeldPart
from accounting.tables import account_table, event_table, transfer_table

_MOVES = ("single", "post")


@dataclass(frozen=True, slots=True)
class AllocationState:
    """The state of an allocation. `is_reaped` tells whether its rest was released."""

    drawn: Drawn
    is_reaped: bool


def allocation_state(reader: Reader, allocation_id: str, known: Drawn = Drawn()) -> AllocationState | None:  # noqa: B008  frozen
    """Return how far an allocation is drawn; None if nothing was ever reserved for it.

    `known` is an earlier result, from which reading continues.
    """
    turns, amount_nano = known.turns, known.amount_nano
    seq = _event_seq(reader, f"settle:{allocation_id}:{turns}" if turns else f"hold:{allocation_id}")
    if seq is None:
        return None if turns == 0 else allocation_state(reader, allocation_id)
    while following := _event_seq(reader, f"settle:{allocation_id}:{turns + 1}"):
        turns, seq = turns + 1, following
        amount_nano += _brought_in(reader, seq)
    is_reaped = _event_seq(reader, f"reap:{allocation_id}") is not None
    return AllocationState(Drawn(turns, amount_nano, _open_parts(reader, seq)), is_reaped)


def _event_seq(reader: Reader, idem_key: str) -> int | None:
    return reader.scalar(select(event_table.c.seq).where(event_table.c.idem_key == idem_key))


def _brought_in(reader: Reader, event_seq: int) -> int:
    """Return what an event moved into the clearing account."""
    query = (
        select(transfer_table.c.amount)
        .join(account_table, account_table.c.id == transfer_table.c.credit)
        .where(transfer_table.c.event_seq == event_seq, transfer_table.c.phase.in_(_MOVES))
        .where(account_table.c.code == chart.CLEARING_MARKET)
    )
    return sum(reader.scalars(query))


def _open_parts(reader: Reader, event_seq: int) -> tuple[HeldPart, ...]:
    """Return what an event has reserved and nothing has resolved."""
    resolution = transfer_table.alias("resolution")
    query = (
        select(account_table.c.code, transfer_table.c.amount, transfer_table.c.seq)
        .join(account_table, account_table.c.id == transfer_table.c.debit)
        .join(resolution, resolution.c.pending_seq == transfer_table.c.seq, isouter=True)
        .where(transfer_table.c.event_seq == event_seq, transfer_table.c.phase == "pending")
        .where(resolution.c.seq.is_(None))
        .order_by(transfer_table.c.leg)
    )
    return tuple(HeldPart(*row) for row in reader.execute(query))
