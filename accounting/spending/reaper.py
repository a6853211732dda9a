"""Gives back the holds of requests that died: crashed gateways, lost machines, bugs."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from sqlalchemy import BigInteger, func, literal, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.chart import user_of
from accounting.errors import DatabaseFailing, PostingDenied
from accounting.ledger.balances import Reader
from accounting.ledger.postings import Posted
from accounting.ledger.writer import Writer
from accounting.rules import burst
from accounting.rules.held import Hold
from accounting.tables import account_table, event_table, transfer_table

_SWEEP_MAX = 1_000
_SWEEP_OVERLAP_NS = 3600 * 10**9
_FULL_SWEEP_EVERY_NS = 3600 * 10**9


def open_holds(
    reader: Reader, *, expires_from_ns: int = 0, expires_before_ns: int | None = None, limit: int = _SWEEP_MAX
) -> list[Hold]:
    """Return holds that nothing has resolved yet, those that expire first before the others.

    A lease is the hold of its event, which has no request.
    """
    pending, resolution = transfer_table.alias("pending"), transfer_table.alias("resolution")
    query = (
        select(event_table.c.ref, account_table.c.code, pending.c.amount, pending.c.seq, pending.c.expires_ns)
        .join(event_table, event_table.c.seq == pending.c.event_seq)
        .join(account_table, account_table.c.id == pending.c.debit)
        .join(resolution, resolution.c.pending_seq == pending.c.seq, isouter=True)
        .where(pending.c.phase == "pending", event_table.c.kind.in_(("hold", "lease")), resolution.c.seq.is_(None))
        .where(pending.c.expires_ns >= expires_from_ns)
        .order_by(pending.c.expires_ns, pending.c.seq)
        .limit(min(limit, _SWEEP_MAX))
    )
    if expires_before_ns is not None:
        query = query.where(pending.c.expires_ns < expires_before_ns)
    return [
        Hold(request_id, user_of(code), amount_nano, seq, expires_ns)
        for request_id, code, amount_nano, seq, expires_ns in reader.execute(query)
    ]


def lease_tip(reader: Reader, pending_seq: int) -> int:
    """Return the last of the pending transfers that followed each other from this one on in a lease's events."""
    resolution, following = transfer_table.alias("resolution"), transfer_table.alias("following")
    chain = select(literal(pending_seq, BigInteger).label("seq")).cte("chain", recursive=True)
    chain = chain.union_all(
        select(following.c.seq)
        .join(resolution, resolution.c.event_seq == following.c.event_seq)
        .join(chain, chain.c.seq == resolution.c.pending_seq)
        .where(following.c.phase == "pending")
    )
    tip: int = reader.execute(select(func.max(chain.c.seq))).scalar_one()
    return tip


class Reaper:
    """Sweeps up holds whose time has passed; the gateway calls it every few seconds.

    Most sweeps look only at holds that expired since the one before (and an hour more, for clocks that differ), so
    that they cost the same however long the books have grown; once an hour all holds are looked at, for clocks
    that were set.
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
        """Release every expired hold and return how many there were; waits for the books, at most `timeout_s`.

        Raises:
            BooksUnavailable: the database or the poster is down or busy. The next sweep begins where this one did.
            TimeoutError: not all was booked in time; also found again by the next sweep.
        """
        now_ns = self._clock_ns()
        if abs(now_ns - self._full_sweep_ns) >= _FULL_SWEEP_EVERY_NS:
            self._swept_until_ns, self._full_sweep_ns = 0, now_ns
        expired = self._expired(now_ns)
        futures = [self._poster.submit(burst.reap(held)) for held in expired]
        if wait(futures, timeout_s).not_done:
            raise TimeoutError(f"{len(futures)} expired holds were not all booked within {timeout_s} s")
        reaped = sum(_was_reaped(future) for future in futures)
        if len(expired) < _SWEEP_MAX:
            self._swept_until_ns = max(0, now_ns - _SWEEP_OVERLAP_NS)
        return reaped

    def _expired(self, now_ns: int) -> list[Hold]:
        try:
            with self._open_session() as session:
                return open_holds(session, expires_from_ns=self._swept_until_ns, expires_before_ns=now_ns)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"open holds could not be read: {type(error).__name__}") from error


def _was_reaped(future: "Future[Posted]") -> bool:
    try:
        return not future.result().replayed
    except PostingDenied:
        # The request was not dead after all, and resolved its hold between our look and our booking.
        return False
