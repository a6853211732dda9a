"""The seller's durable state in its own SQLite file: on disk before the last piece of an answer is sent.

One thread has the file. Every write is one transaction, and repeating it changes nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    case,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert

from runtime.database import DatabaseVersionUnknown, open_file
from runtime.settings import SettingsInvalid

BATCH_MAX = 256
SUBMITTED_MAX = 32
"""Channels read at once to be submitted: each may have 256 records."""
KEPT_MS = 60 * 24 * 3_600_000
"""Retention of a channel after its credit has ended: disputes are over by then."""

T = TypeVar("T")
VERSION = 2
"""Stored as `user_version`; a file of an unknown version is not opened."""

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

channels = Table(
    "channels",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("is_allocated", Boolean, nullable=False),
    Column("backing", LargeBinary, nullable=False),
    Column("statements", LargeBinary, nullable=False),
    # When its credit ends, by the marketplace's clock; NULL for credit without an end.
    Column("ends_ms", BigInteger),
    # Incremented with each change of the channel's records; `submitted` is the count that the marketplace knows.
    Column("changes", Integer, nullable=False),
    Column("submitted", Integer, nullable=False),
    # Refusals by the marketplace in a row, and the earliest time of the next try.
    Column("refusals", Integer, nullable=False, server_default="0"),
    Column("again_ms", BigInteger, nullable=False, server_default="0"),
    # The delivered amount that the buyer has not signed for, and that we forgave.
    Column("forgiven_nano", BigInteger, nullable=False, server_default="0"),
)
Index("channels_by_end", channels.c.ends_ms)
Index("channels_to_submit", channels.c.is_allocated, channels.c.submitted, channels.c.changes)

lanes = Table(
    "lanes",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("evidence", LargeBinary, nullable=False),
    Column("is_final", Boolean, nullable=False),
)

sales = Table(
    "sales",
    metadata,
    Column("channel", String(64), primary_key=True),
    Column("lane", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("model", String(200), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("made_ms", BigInteger, nullable=False),
    Column("is_booked", Boolean, nullable=False),
)
Index("sales_to_book", sales.c.is_booked)


@dataclass(frozen=True, slots=True)
class Backing:
    """A channel's backing as raw records: who owes, who vouches for it, and with which keys."""

    channel: str
    is_allocated: bool
    records: tuple[bytes, ...]
    statements: tuple[bytes, ...]
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LaneRecords:
    """All records of a lane; not `is_final` while one of its requests is being answered."""

    records: tuple[bytes, ...]
    is_final: bool


@dataclass(frozen=True, slots=True)
class RecordedSale:
    """One answered request, its amount in nano-USD and its voucher's numbers."""

    channel: str
    lane: int
    seq: int
    model: str
    amount_nano: int
    made_ms: int


@dataclass(frozen=True, slots=True)
class Unsubmitted:
    """A channel that the marketplace does not know fully; confirm `changes` once it does."""

    backing: Backing
    evidence: tuple[bytes, ...]
    changes: int
    refusals: int = 0


class SellingStore:
    """`selling.db`, opened for one process. Its methods wait for the thread that has the file."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsInvalid if this version cannot use the file."""
        try:
            self._engine = open_file(path, metadata.sorted_tables, VERSION, pool_size=1)
        except DatabaseVersionUnknown as error:
            raise SettingsInvalid(str(error)) from None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="selling.db")

    async def close(self) -> None:
        await self._run(lambda _: None)
        self._thread.shutdown()
        self._engine.dispose()

    async def fact(self, name: str) -> bytes | None:
        return await self._run(lambda db: db.scalar(select(facts.c.value).where(facts.c.name == name)))

    async def keep_fact(self, name: str, value: bytes) -> None:
        await self._run(lambda db: db.execute(_put(facts, {"name": name, "value": value}, "name")))

    async def keep(
        self,
        backing: Backing,
        known: dict[int, LaneRecords],
        sale: RecordedSale | None = None,
        *,
        forgiven_nano: int = 0,
    ) -> None:
        """Store the current records of a channel's lanes; durable on return. The forgiven amount only grows."""
        await self._run(lambda db: _keep(db, backing, known, sale, forgiven_nano))

    async def forgiven_nano(self, channel: str) -> int:
        query = select(channels.c.forgiven_nano).where(channels.c.channel == channel)
        return await self._run(lambda db: db.scalar(query)) or 0

    async def backing(self, channel: str) -> Backing | None:
        return await self._run(lambda db: _backing(db, channel))

    async def evidence(self, channel: str) -> tuple[bytes, ...]:
        """Return all records of a channel, each once."""
        return await self._run(lambda db: _evidence(db, channel))

    async def unfinished(self) -> list[str]:
        """Return channels with a request still being answered when last written, as a crash leaves them."""
        query = select(lanes.c.channel).where(~lanes.c.is_final).distinct()
        return await self._run(lambda db: list(db.scalars(query)))

    async def unsubmitted(self, now_ms: int) -> list[Unsubmitted]:
        """Return some of the channels that the marketplace must be told of, except those waiting for later."""
        return await self._run(lambda db: _unsubmitted(db, now_ms))

    async def note_submitted(self, channel: str, changes: int) -> None:
        """Note that the marketplace knows the channel up to `changes`."""
        query = update(channels).where(channels.c.channel == channel, channels.c.submitted < changes)
        await self._run(lambda db: db.execute(query.values(submitted=changes, refusals=0, again_ms=0)))

    async def note_refused(self, channel: str, again_ms: int) -> None:
        """Note that the marketplace refused the channel; it is submitted again at `again_ms` at the earliest."""
        query = update(channels).where(channels.c.channel == channel)
        values = {"refusals": channels.c.refusals + 1, "again_ms": again_ms}
        await self._run(lambda db: db.execute(query.values(values)))

    async def unbooked(self) -> list[RecordedSale]:
        """Return some of the sales that our own gateway's ledger lacks."""
        columns = (sales.c.channel, sales.c.lane, sales.c.seq, sales.c.model, sales.c.amount_nano, sales.c.made_ms)
        query = select(*columns).where(~sales.c.is_booked).limit(BATCH_MAX)
        return await self._run(lambda db: [RecordedSale(*row) for row in db.execute(query)])

    async def note_booked(self, sale: RecordedSale) -> None:
        # Match the amount, too: a sale that has grown since must be reported again.
        found = (sales.c.channel == sale.channel) & (sales.c.lane == sale.lane) & (sales.c.seq == sale.seq)
        query = update(sales).where(found & (sales.c.amount_nano == sale.amount_nano))
        await self._run(lambda db: db.execute(query.values(is_booked=True)))

    async def sweep(self, now_ms: int) -> int:
        """Delete channels that ended long ago and are settled and booked; return how many.

        This includes channels that the marketplace refused until then, since nothing can be booked on them any more.
        """
        return await self._run(lambda db: _sweep(db, now_ms - KEPT_MS))

    async def _run(self, work: Callable[[Connection], T]) -> T:
        def transact() -> T:
            with self._engine.begin() as db:
                return work(db)

        return await asyncio.get_running_loop().run_in_executor(self._thread, transact)


def _keep(
    db: Connection, backing: Backing, known: dict[int, LaneRecords], sale: RecordedSale | None, forgiven_nano: int
) -> None:
    before = _backing(db, backing.channel)
    # Keep earlier statements: their keys may have signed stored records, so a later job must not remove them.
    statements = dict.fromkeys((*(before.statements if before else ()), *backing.statements))
    row = {
        "channel": backing.channel,
        "is_allocated": backing.is_allocated,
        "backing": msgspec.msgpack.encode(backing.records),
        "statements": msgspec.msgpack.encode(tuple(statements)),
        "ends_ms": backing.ends_ms,
        "changes": 1,
        "submitted": 0,
        "forgiven_nano": forgiven_nano,
    }
    statement = insert(channels).values(row)
    changed = {
        "changes": channels.c.changes + 1,
        "statements": statement.excluded.statements,
        "forgiven_nano": func.max(channels.c.forgiven_nano, statement.excluded.forgiven_nano),
    }
    db.execute(statement.on_conflict_do_update(index_elements=["channel"], set_=changed))
    for lane, each in known.items():
        value = {"channel": backing.channel, "lane": lane, "is_final": each.is_final}
        value["evidence"] = msgspec.msgpack.encode(each.records)
        db.execute(_put(lanes, value, "channel", "lane"))
    if sale is not None:
        db.execute(_sold(sale))


def _sold(sale: RecordedSale) -> Any:
    """Keep the larger amount: a sale only grows."""
    values = {name: getattr(sale, name) for name in ("channel", "lane", "seq", "model", "amount_nano", "made_ms")}
    statement = insert(sales).values(values | {"is_booked": sale.amount_nano == 0})
    larger = statement.excluded.amount_nano > sales.c.amount_nano
    changed = {
        "amount_nano": case((larger, statement.excluded.amount_nano), else_=sales.c.amount_nano),
        "is_booked": case((larger, False), else_=sales.c.is_booked),
    }
    return statement.on_conflict_do_update(index_elements=["channel", "lane", "seq"], set_=changed)


def _put(table: sqlalchemy.Table, values: dict[str, Any], *keys: str) -> Any:
    statement = insert(table).values(values)
    changed = {name: statement.excluded[name] for name in values if name not in keys}
    return statement.on_conflict_do_update(index_elements=list(keys), set_=changed)


def _backing(db: Connection, channel: str) -> Backing | None:
    row = db.execute(select(channels).where(channels.c.channel == channel)).first()
    return None if row is None else _backing_of(row)


def _backing_of(row: Any) -> Backing:
    return Backing(row.channel, row.is_allocated, _records(row.backing), _records(row.statements), row.ends_ms)


def _evidence(db: Connection, channel: str) -> tuple[bytes, ...]:
    stored: Iterable[bytes] = db.scalars(select(lanes.c.evidence).where(lanes.c.channel == channel))
    return tuple(dict.fromkeys(raw for packed in stored for raw in _records(packed)))


def _unsubmitted(db: Connection, now_ms: int) -> list[Unsubmitted]:
    is_known = channels.c.submitted == channels.c.changes
    query = select(channels).where(channels.c.is_allocated, ~is_known, channels.c.again_ms <= now_ms)
    rows = db.execute(query.limit(SUBMITTED_MAX)).all()
    return [Unsubmitted(_backing_of(row), _evidence(db, row.channel), row.changes, row.refusals) for row in rows]


def _records(packed: bytes) -> tuple[bytes, ...]:
    return msgspec.msgpack.decode(packed, type=tuple[bytes, ...])


def _sweep(db: Connection, ended_before_ms: int) -> int:
    # Credit lines are kept: only we store what is owed on them, and it is owed longer than the line lasts.
    is_over = (channels.c.submitted == channels.c.changes) | (channels.c.refusals > 0)
    is_done = channels.c.is_allocated & is_over
    unbooked = select(sales.c.channel).where(~sales.c.is_booked)
    ended = (channels.c.ends_ms < ended_before_ms) & is_done & channels.c.channel.not_in(unbooked)
    gone = db.scalars(select(channels.c.channel).where(ended).limit(BATCH_MAX)).all()
    for table in (sales, lanes, channels):
        db.execute(delete(table).where(table.c.channel.in_(gone)))
    return len(gone)
