"""Release what dead requests had reserved (crashed gateways, lost machines, bugs), and expire credit grants."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, PostingDenied
from accounting.ledger.balances import Reader
from accounting.ledger.postings import MAX_LEGS, Posted, Posting
from accounting.ledger.writer import Writer
from accounting.rules import burst
from accounting.rules.parts import HeldPart
from accounting.spending.credit_grants import expiries
from accounting.tables import account_table, event_table, transfer_table

_SWEEP_MAX = 1_000
_HOLDING = ("hold", "lease", "draw")
_SWEEP_OVERLAP_NS = 3600 * 10**9
_FULL_SWEEP_EVERY_NS = 3600 * 10**9
# The reservation of a request that ran at a credit grant's end is released within a day.
_GRANT_OVERLAP_NS = 25 * 3600 * 10**9

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenHold:
    """The unresolved credits that one event reserved, for a request or as a lease."""

    ref: str
    clearing: str
    parts: tuple[HeldPart, ...]
    expires_ns: int


def open_holds(
    reader: Reader, *, expires_from_ns: int = 0, expires_before_ns: int | None = None
) -> list[OpenHold]:
    """Return unresolved holds, those that expire first before the others.

    A lease is the hold of its event, which has no request. At most `_SWEEP_MAX` parts are read at once, and each
    hold is returned with all its parts.
    """
    pending, resolution = transfer_table.alias("pending"), transfer_table.alias("resolution")
    debit, credit = account_table.alias("debited"), account_table.alias("credited")
    query = (
        select(
            event_table.c.ref, credit.c.code, pending.c.expires_ns, debit.c.code, pending.c.amount, pending.c.seq
        )
        .join(event_table, event_table.c.seq == pending.c.event_seq)
        .join(debit, debit.c.id == pending.c.debit)
        .join(credit, credit.c.id == pending.c.credit)
        .join(resolution, resolution.c.pending_seq == pending.c.seq, isouter=True)
        .where(pending.c.phase == "pending", event_table.c.kind.in_(_HOLDING), resolution.c.seq.is_(None))
        .where(pending.c.expires_ns >= expires_from_ns)
        .order_by(pending.c.expires_ns, pending.c.seq)
        .limit(_SWEEP_MAX)
    )
    if expires_before_ns is not None:
        query = query.where(pending.c.expires_ns < expires_before_ns)
    rows = reader.execute(query).all()
    found = [
        OpenHold(ref, clearing, tuple(HeldPart(*row[3:]) for row in parts), expires_ns)
        for (ref, clearing, expires_ns), parts in groupby(rows, key=lambda row: row[:3])
    ]
    # More parts of the last hold may follow, and a hold is released whole or not at all.
    return found[:-1] if len(rows) == _SWEEP_MAX else found


def lease_tip(reader: Reader, pending_seq: int) -> tuple[HeldPart, ...]:
    """Follow a lease's events from this transfer on, and return what the last of them reserved."""
    pending, resolution = transfer_table.alias("pending"), transfer_table.alias("resolution")
    first = select(transfer_table.c.event_seq).where(transfer_table.c.seq == pending_seq)
    chain = first.cte("chain", recursive=True)
    # An event resolves all parts of the one before, so UNION visits each event once.
    chain = chain.union(
        select(resolution.c.event_seq)
        .join(pending, pending.c.seq == resolution.c.pending_seq)
        .join(chain, chain.c.event_seq == pending.c.event_seq)
    )
    tip = (
        select(func.max(pending.c.event_seq))
        .join(chain, chain.c.event_seq == pending.c.event_seq)
        .where(pending.c.phase == "pending")
        .scalar_subquery()
    )
    query = (
        select(account_table.c.code, transfer_table.c.amount, transfer_table.c.seq)
        .join(account_table, account_table.c.id == transfer_table.c.debit)
        .where(transfer_table.c.event_seq == tip, transfer_table.c.phase == "pending")
        .order_by(transfer_table.c.leg)
    )
    return tuple(HeldPart(*row) for row in reader.execute(query))


class Reaper:
    """Release expired holds and expire ended credit grants. The gateway calls it every few seconds.

    Most sweeps read only what ended since the last one, plus an hour for clocks that differ. For credit grants,
    whose holds continue, they add a day. So they cost the same, however long the ledger is. An hourly sweep reads
    everything, in case a clock was set.
    """

    def __init__(
        self, poster: Writer, open_session: Callable[[], Session], *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._poster = poster
        self._open_session = open_session
        self._clock_ns = clock_ns
        self._swept_until_ns = 0
        self._full_sweep_ns = clock_ns()

    def sweep(self, timeout_s: float = 30.0) -> int:
        """Release every expired hold and return their number. Wait for the ledger at most `timeout_s` seconds.

        Also expire what no hold keeps of ended credit grants.

        Raises:
            LedgerUnavailable: the database or the poster is down or busy. The next sweep begins at the same place.
            TimeoutError: not everything was booked in time. The next sweep finds the rest again.
        """
        now_ns = self._clock_ns()
        if abs(now_ns - self._full_sweep_ns) >= _FULL_SWEEP_EVERY_NS:
            self._swept_until_ns, self._full_sweep_ns = 0, now_ns
        expired = self._look(
            lambda session: open_holds(session, expires_from_ns=self._swept_until_ns, expires_before_ns=now_ns)
        )
        reaped = self._book([burst.reap(held.ref, held.parts, held.clearing) for held in expired], timeout_s)
        grants_from_ns = max(0, self._swept_until_ns - _GRANT_OVERLAP_NS)
        self._book(self._look(lambda session: expiries(session, now_ns, ended_from_ns=grants_from_ns)), timeout_s)
        # If nearly a full page of parts was read, there may be more: keep the start of the next sweep.
        if sum(len(held.parts) for held in expired) < _SWEEP_MAX - MAX_LEGS:
            self._swept_until_ns = max(0, now_ns - _SWEEP_OVERLAP_NS)
        return reaped

    def _book(self, postings: Sequence[Posting], timeout_s: float) -> int:
        futures = [self._poster.submit(posting) for posting in postings]
        if wait(futures, timeout_s).not_done:
            raise TimeoutError(f"{len(futures)} journal entries were not all posted within {timeout_s} s")
        return sum(map(_was_booked, futures))

    def _look(self, query: Callable[[Session], list[T]]) -> list[T]:
        try:
            with self._open_session() as session:
                return query(session)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"open holds could not be read: {type(error).__name__}") from error


def _was_booked(future: "Future[Posted]") -> bool:
    try:
        return not future.result().replayed
    except PostingDenied:
        # The request was alive and resolved its hold between our reading and our booking, or another gateway
        # expired the same credit grant.
        return False
