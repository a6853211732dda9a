"""The signed records that a gateway keeps, of others and its own: in memory, and in a table for the next start."""

import itertools
import random
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, delete, insert, select, text
from sqlalchemy.exc import IntegrityError

from gateway.database import DatabaseNewer, open_engine, read_sessions, write_sessions
from gateway.market.known import STATEMENTS, KnownRecords, check_told
from gateway.market.room import Bounds, Sources
from gateway.market.tables import record_table
from market.auditing.findings import Findings, read_findings
from market.errors import MarketError
from market.listings.listing import Listing, read_listing
from market.records.book import Book, alive
from market.records.envelope import RECORD_BYTES_MAX, Record, open_record
from market.records.exchange import differing, summary
from market.records.key_status import Standing

_SCHEMA = 1
# Rows that another gateway commits late have smaller numbers than some that were seen.
_LATE_ROWS = 1000
_CHUNK = 400

Watcher = Callable[[Sequence[Record], str], None]
"""Told what came and from where, in whatever thread it came."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a keeper believes of whom. `always` are identities whose records always have room."""

    sources: Sources = field(default_factory=Sources)
    bounds: Bounds = field(default_factory=Bounds)
    always: Container[str] = ()
    allows_loopback: bool = False


class BookKeeper:
    """Takes records of strangers, keeps what counts, and says what is known. May be used from several threads.

    Args:
        kept_in: the gateway's database, or a file of its own, made on first use.
        clock_ms: milliseconds since 1970.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database fails. What `add` took is known then, until the next start.
        DatabaseNewer: the file is from a newer version.
    """

    def __init__(
        self, kept_in: Engine | Path, clock_ms: Callable[[], int], keeping: Keeping | None = None
    ) -> None:
        self._engine = kept_in if isinstance(kept_in, Engine) else _open_file(kept_in)
        self._owns_engine = isinstance(kept_in, Path)
        self._clock_ms = clock_ms
        self._keeping = keeping or Keeping()
        self._known = KnownRecords(self._keeping.sources, self._keeping.bounds, self._keeping.always)
        self._lock = threading.Lock()
        # Held longer than the other one, which nobody who only asks is to wait for.
        self._writing = threading.Lock()
        self._watchers: list[Watcher] = []
        self._view = _View()
        self._offers: dict[str, tuple[Record, Listing]] = {}
        self._findings: list[tuple[str, Findings]] = []
        self._seen_seq = 0
        self._delete(self.refresh())

    def close(self) -> None:
        if self._owns_engine:
            self._engine.dispose()

    def watch(self, watcher: Watcher) -> None:
        """Have every record told that is newly known."""
        self._watchers.append(watcher)

    def add(self, raw: Iterable[bytes], source: str) -> int:
        """Take what is new, can be believed and has room of what `source` tells; returns how many were taken.

        Takes about a third of a millisecond of CPU for each record that is not known yet.
        """
        now_ms = self._clock_ms()
        read = [each for one in raw if (each := self._open(one, now_ms))]
        with self._writing:
            with self._lock:
                change = self._known.take(read, source, now_ms)
                self._look_anew(bool(change.taken or change.dropped))
            self._delete(each.digest for each in change.dropped)
            if change.taken:
                self._insert(change.taken, source)
        if change.taken:
            for watcher in self._watchers:
                watcher(change.taken, source)
        return len(change.taken)

    def standing(self, identity: str, key: str) -> Standing:
        """What a record of this identity with this key is worth, by all statements that are known."""
        return self._known.standing(identity, key)

    def statements_of(self, identity: str) -> list[bytes]:
        """What an identity has said about its keys: revocations, founding, rotations."""
        with self._lock:
            return [each.raw for each in self._known.statements_of(identity)]

    def listings(self, now_ms: int) -> list[tuple[Record, Listing]]:
        """The offers that count now, to the second."""
        with self._lock:
            if self._view.offers_s != now_ms // 1000:
                living = alive(self._whole(), now_ms, self._known.standing)
                self._offers = {each.digest: self._offer(each) for each in living if each.kind == "listing"}
                self._findings = [(each.issuer, read_findings(each)) for each in living if each.kind == "findings"]
                self._view.offers_s = now_ms // 1000
            return list(self._offers.values())

    def findings(self, now_ms: int) -> list[tuple[str, Findings]]:
        """What auditors say now, to the second, with their identities."""
        self.listings(now_ms)
        with self._lock:
            return list(self._findings)

    def summary(self) -> tuple[str, ...]:
        """A hash for each bucket of records, by which two gateways find what they know differently."""
        with self._lock:
            self._view.summary = self._view.summary or summary(self._whole())
            return self._view.summary

    def differing(self, theirs: Sequence[str]) -> list[Record]:
        """What another gateway with this summary may lack: revocations first, listings last, else by chance.

        By chance, because there may be more of them than one answer holds.

        Raises:
            RecordInvalid: that is no summary.
        """
        with self._lock:
            found = differing(self._whole(), theirs)
        random.shuffle(found)
        order = {kind: n for n, kind in enumerate(STATEMENTS)}
        return sorted(found, key=lambda each: order.get(each.kind, len(order)))

    def sweep(self) -> None:
        """Forget what has been expired for long."""
        with self._writing:
            with self._lock:
                gone = self._known.sweep(self._clock_ms()).dropped
                self._look_anew(bool(gone))
            self._delete(each.digest for each in gone)

    def refresh(self) -> list[str]:
        """Take what other processes have put into the same table; returns the digests of what is worth nothing."""
        now_ms = self._clock_ms()
        columns = record_table.c
        rows = select(columns.seq, columns.digest, columns.source, columns.raw)
        with read_sessions(self._engine)() as session:
            kept = session.execute(rows.where(columns.seq > self._seen_seq - _LATE_ROWS)).all()
        by_source: dict[str, list[Record]] = {}
        for seq, _, source, raw in kept:
            self._seen_seq = max(self._seen_seq, seq)
            if record := self._open(bytes(raw), now_ms):
                by_source.setdefault(source, []).append(record)
        with self._lock:
            # The most believed first: what is somebody's by their word has its room there.
            for source in sorted(by_source, key=self._keeping.sources.rank, reverse=True):
                self._known.take(by_source[source], source, now_ms)
            self._look_anew(bool(by_source))
            return [digest for _, digest, _, raw in kept if not self._known.has(bytes(raw))]

    def _look_anew(self, has_changed: bool) -> None:
        if has_changed:
            self._view = _View()

    def _open(self, raw: bytes, now_ms: int) -> Record | None:
        """None for what is known already, and for what nobody should believe."""
        if len(raw) > RECORD_BYTES_MAX or self._known.has(raw):
            return None
        try:
            record = open_record(raw)
            check_told(record, now_ms, allows_loopback=self._keeping.allows_loopback)
        except MarketError:
            return None
        return record

    def _whole(self) -> Book:
        self._view.book = self._view.book or self._known.book
        return self._view.book

    def _offer(self, record: Record) -> tuple[Record, Listing]:
        found = self._offers.get(record.digest)
        return found or (record, read_listing(record, allows_loopback=self._keeping.allows_loopback))

    def _insert(self, records: Sequence[Record], source: str) -> None:
        for tries_left in (2, 1, 0):
            try:
                with write_sessions(self._engine)() as session, session.begin():
                    digests = [each.digest for each in records]
                    known = select(record_table.c.digest).where(record_table.c.digest.in_(digests))
                    there = set(session.scalars(known))
                    rows = [
                        {"digest": each.digest, "source": source, "raw": each.raw}
                        for each in records
                        if each.digest not in there
                    ]
                    if rows:
                        session.execute(insert(record_table), rows)
            except IntegrityError:
                # Another gateway was told the same at this moment.
                if not tries_left:
                    raise
            else:
                return

    def _delete(self, digests: Iterable[str]) -> None:
        left = iter(digests)
        while chunk := list(itertools.islice(left, _CHUNK)):
            with write_sessions(self._engine)() as session, session.begin():
                session.execute(delete(record_table).where(record_table.c.digest.in_(chunk)))


@dataclass(slots=True)
class _View:
    """What is worked out of the records, until they change."""

    book: Book | None = None
    summary: tuple[str, ...] = ()
    offers_s: int = -1


def _open_file(path: Path) -> Engine:
    engine = open_engine(f"sqlite:///{path}", pool_size=2)
    with engine.begin() as connection:
        found = connection.execute(text("PRAGMA user_version")).scalar_one()
        if found > _SCHEMA:
            raise DatabaseNewer(f"{path.name} is from a newer version of Millrace: start that one")
        record_table.create(connection, checkfirst=True)
        connection.execute(text(f"PRAGMA user_version = {_SCHEMA}"))
    return engine
