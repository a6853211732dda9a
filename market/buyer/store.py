"""buying.db: channels and their credit, used sequence numbers, and what was signed.

One process has it open. Whatever is about to be sent is written first, with a full sync.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Row,
    case,
    column,
    delete,
    func,
    insert,
    inspect,
    literal,
    or_,
    select,
    table,
    tuple_,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from market.audits.audit_target import AUDIT_ID
from market.buyer.owed import Owed
from market.buyer.tables import (
    VERSION,
    channel_table,
    fact_table,
    job_table,
    metadata,
    track_table,
    unbooked_table,
    unsubmitted_table,
)
from market.protocol.channels.terms import LANES_MAX
from runtime.database import open_file
from runtime.times import now_ms

KEPT_MS = 33 * 24 * 3_600_000
"""Retention of signed records after their channel has ended.

A marketplace books on a channel for at most 31 days, and a dispute that is opened then takes one more.
"""
PRUNED_AT_ONCE = 2000

DIED = "died"
"""The flag of a job that the next process signed for; slightly more may have been delivered."""
_DAY_MS = 24 * 3_600_000

# A range condition, which can use the index; "." is the character after the hyphen.
_OF_AUDIT = (job_table.c.request_id >= AUDIT_ID, job_table.c.request_id < AUDIT_ID[:-1] + ".")


class BegunJob(NamedTuple):
    """A job whose voucher is about to be sent; its number is used up from now on."""

    channel: str
    lane: int
    seq: int
    request_id: str
    model: str
    ceiling_nano: int
    voucher: bytes


class EndedJob(NamedTuple):
    """A job's result: our receipt, the seller's last one, and what this job alone costs in nano-USD."""

    receipt: bytes
    claim: bytes | None
    amount_nano: int
    flags: str


class BuyingStore:
    """buying.db; may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._engine = open_file(path, metadata.sorted_tables, VERSION)
        with self._engine.begin() as connection:
            _take_over_audits(connection)
        self._opened_ms = now_ms()

    def close(self) -> None:
        self._engine.dispose()

    def add_channel(self, **values: Any) -> None:
        """Store a channel with its credit, once."""
        with self._engine.begin() as connection:
            connection.execute(upsert(channel_table).values(values).on_conflict_do_nothing())

    def channels(self, now_ms: int) -> Sequence[Row[Any]]:
        """Return channels whose credit has not ended, the oldest first."""
        query = select(channel_table).where(channel_table.c.expires_ms > now_ms)
        return self._read(query.order_by(channel_table.c.expires_ms, channel_table.c.id))

    def jobs(self, channel: str) -> Sequence[Row[Any]]:
        """Return every job of a channel, ordered by lane and number."""
        query = select(job_table).where(job_table.c.channel == channel)
        return self._read(query.order_by(job_table.c.lane, job_table.c.seq))

    def left_open(self, channel: str) -> Sequence[Row[Any]]:
        """Return jobs that an earlier process left unfinished."""
        columns = job_table.c
        here = columns.channel == channel, columns.receipt.is_(None), columns.began_ms < self._opened_ms
        return self._read(select(job_table).where(*here))

    def last_jobs(self, channel: str) -> Sequence[Row[Any]]:
        """Return the newest job of each lane: its voucher's base contains what came before."""
        of_lane = select(job_table.c.lane, func.max(job_table.c.seq)).where(job_table.c.channel == channel)
        last = tuple_(job_table.c.lane, job_table.c.seq).in_(of_lane.group_by(job_table.c.lane))
        return self._read(select(job_table).where(job_table.c.channel == channel, last))

    def begin(self, begun: BegunJob) -> None:
        """Store a job; on disk when this returns. Raises IntegrityError if the number was used."""
        with self._engine.begin() as connection:
            connection.execute(insert(job_table).values(**begun._asdict(), began_ms=now_ms()))
            unbooked = upsert(unbooked_table).values(request_id=begun.request_id)
            connection.execute(unbooked.on_conflict_do_nothing())

    def note_progress(self, begun: BegunJob, progress: bytes) -> None:
        """Store what has come of a job so far, in case this process dies before its end."""
        with self._engine.begin() as connection:
            unsigned = job_table.c.receipt.is_(None)
            connection.execute(_job(begun).where(unsigned).values(progress=progress))

    def end(self, begun: Any, ended: EndedJob) -> None:
        """Store a job's result and receipt. `begun` has the job's channel, lane and number."""
        # Credit lines are not channels of the marketplace and have no row.
        here = select(channel_table.c.id, literal(1)).where(channel_table.c.id == begun.channel)
        unsubmitted = upsert(unsubmitted_table).from_select(["channel", "changes"], here)
        again = {"changes": unsubmitted_table.c.changes + 1}
        with self._engine.begin() as connection:
            connection.execute(_job(begun).values(ended._asdict()))
            connection.execute(unsubmitted.on_conflict_do_update(index_elements=["channel"], set_=again))

    def tell(self, channel: str, numbers: Iterable[tuple[int, int]]) -> None:
        """Note that the seller has these receipts."""
        with self._engine.begin() as connection:
            for lane, seq in numbers:
                here = (job_table.c.channel == channel, job_table.c.lane == lane, job_table.c.seq == seq)
                connection.execute(update(job_table).where(*here).values(is_reported=True))

    def unsubmitted(self, after: str, count: int) -> Sequence[Row[Any]]:
        """Return channels after this id whose newest receipts the marketplace may lack, with their credit."""
        columns = unsubmitted_table.c.channel, unsubmitted_table.c.changes, channel_table.c.records
        query = select(*columns).join(channel_table, channel_table.c.id == unsubmitted_table.c.channel)
        return self._read(query.where(columns[0] > after).order_by(columns[0]).limit(count))

    def signed(self, channel: str) -> Sequence[Row[Any]]:
        """Return each lane's newest signed job: its voucher and receipt include everything before it."""
        query: Any = select(job_table.c.voucher, job_table.c.receipt).order_by(job_table.c.seq.desc()).limit(1)
        is_signed = job_table.c.channel == channel, job_table.c.receipt.is_not(None)
        with self._engine.connect() as connection:
            # One lookup by key per lane, because a channel may have any number of jobs.
            return [
                row
                for n in range(LANES_MAX)
                for row in connection.execute(query.where(*is_signed, job_table.c.lane == n))
            ]

    def settling(self, after: str, count: int, since_ms: int) -> Sequence[Row[Any]]:
        """Return channels after this id that had not ended by `since_ms`."""
        query = select(channel_table).where(channel_table.c.id > after, channel_table.c.expires_ms > since_ms)
        return self._read(query.order_by(channel_table.c.id).limit(count))

    def job(self, channel: str, lane: int, seq: int) -> Row[Any] | None:
        """Return one job, by its number."""
        is_it = job_table.c.channel == channel, job_table.c.lane == lane, job_table.c.seq == seq
        return next(iter(self._read(select(job_table).where(*is_it))), None)

    def note_submitted(self, channel: str, changes: int) -> None:
        """Note that the marketplace has a channel's receipts up to `changes`, unless there are newer ones."""
        here = unsubmitted_table.c.channel == channel, unsubmitted_table.c.changes == changes
        with self._engine.begin() as connection:
            connection.execute(delete(unsubmitted_table).where(*here))

    def owed(self, after: str, serving: Collection[str], count: int, now_ms: int) -> list[Owed]:
        """Return the cost of requests and audits not yet confirmed as booked, without those still being served.

        `died` counts jobs during which an earlier process died. Those without a receipt for a day never get one.
        """
        request_id, amount = unbooked_table.c.request_id, job_table.c.amount_nano
        query = (
            select(
                request_id,
                func.coalesce(func.sum(amount), 0),
                func.min(job_table.c.began_ms),
                func.sum(case((or_(amount.is_(None), job_table.c.flags == DIED), 1), else_=0)),
                func.coalesce(func.min(channel_table.c.seller), ""),
            )
            .join(job_table, job_table.c.request_id == request_id)
            # Credit lines are no channels.
            .join(channel_table, channel_table.c.id == job_table.c.channel, isouter=True)
            .where(request_id > after, request_id.not_in(serving))
            .group_by(request_id)
            .having(or_(func.count(amount) == func.count(), func.max(job_table.c.began_ms) < now_ms - _DAY_MS))
        )
        return [Owed(*tuple(row)) for row in self._read(query.order_by(request_id).limit(count))]

    def forget_owed(self, request_ids: Collection[str]) -> None:
        """Forget requests that are booked."""
        with self._engine.begin() as connection:
            connection.execute(delete(unbooked_table).where(unbooked_table.c.request_id.in_(request_ids)))

    def audits_nano(self, since_ms: int) -> int:
        """Return what audits that began after `since_ms` cost, in nano-USD."""
        amount = func.coalesce(func.sum(job_table.c.amount_nano), 0)
        return int(self._read(select(amount).where(*_OF_AUDIT, job_table.c.began_ms > since_ms))[0][0])

    def tracks(self) -> Sequence[Row[Any]]:
        return self._read(select(track_table))

    def put_track(self, **values: Any) -> None:
        with self._engine.begin() as connection:
            known = upsert(track_table).values(values)
            connection.execute(known.on_conflict_do_update(index_elements=["seller"], set_=values))

    def fact(self, name: str) -> str | None:
        rows = self._read(select(fact_table.c.value).where(fact_table.c.name == name))
        return str(rows[0].value) if rows else None

    def put_fact(self, name: str, value: str) -> None:
        """Store a fact once; an existing value stays."""
        with self._engine.begin() as connection:
            connection.execute(upsert(fact_table).values(name=name, value=value).on_conflict_do_nothing())

    def prune(self, now_ms: int) -> None:
        """Delete what is long over and booked: ended channels, and all but the newest receipts of credit lines.

        The newest receipt of a line's lane includes everything before it, and is kept for as long as the line
        lasts.
        """
        before_ms = now_ms - KEPT_MS
        ended = select(channel_table.c.id).where(channel_table.c.expires_ms < before_ms)
        is_booked = job_table.c.request_id.not_in(select(unbooked_table.c.request_id))
        for over in ((job_table.c.channel.in_(ended),), _surpassed(before_ms)):
            while self._prune_jobs(*over, is_booked) == PRUNED_AT_ONCE:
                pass
        with self._engine.begin() as connection:
            is_empty = channel_table.c.id.not_in(select(job_table.c.channel))
            connection.execute(delete(channel_table).where(channel_table.c.id.in_(ended), is_empty))
            channels = select(channel_table.c.id)
            connection.execute(delete(unsubmitted_table).where(unsubmitted_table.c.channel.not_in(channels)))

    def _prune_jobs(self, *over: Any) -> int:
        """Delete in batches, so that requests wait only briefly for this writer."""
        key = job_table.c.channel, job_table.c.lane, job_table.c.seq
        some = select(*key).where(*over).limit(PRUNED_AT_ONCE).correlate(None)
        with self._engine.begin() as connection:
            return connection.execute(delete(job_table).where(tuple_(*key).in_(some))).rowcount

    def _read(self, query: Any) -> Sequence[Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()


def _take_over_audits(connection: Connection) -> None:
    """List the unbooked audits of an older database, which lists the booked ones instead."""
    booked = table("booked_audit", column("request_id"))
    if not inspect(connection).has_table(booked.name):
        return
    audits = select(job_table.c.request_id).where(*_OF_AUDIT).distinct()
    unbooked = audits.where(job_table.c.request_id.not_in(select(booked.c.request_id)))
    connection.execute(insert(unbooked_table).from_select(["request_id"], unbooked))
    connection.exec_driver_sql(f"DROP TABLE {booked.name}")


def _job(begun: Any) -> Any:
    columns = job_table.c
    return update(job_table).where(
        columns.channel == begun.channel, columns.lane == begun.lane, columns.seq == begun.seq
    )


def _surpassed(before_ms: int) -> Any:
    """Return conditions for credit-line jobs before `before_ms` that have a newer receipt on their lane."""
    newer = job_table.alias()
    last_seq = (
        select(func.max(newer.c.seq))
        .where(newer.c.channel == job_table.c.channel, newer.c.lane == job_table.c.lane)
        .where(newer.c.receipt.is_not(None))
        .scalar_subquery()
    )
    is_of_line = job_table.c.channel.not_in(select(channel_table.c.id))
    return is_of_line, job_table.c.began_ms < before_ms, job_table.c.seq < last_seq
