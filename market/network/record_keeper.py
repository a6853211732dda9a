"""The signed records that a gateway keeps, its own and others': in memory, and in a table for the next start."""

import itertools
import random
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import IntegrityError

from market.errors import MarketError
from market.network.known import STATEMENTS, KnownRecords, check_received
from market.network.room import RecordBounds, Sources
from market.network.tables import record_table
from market.protocol.audits.findings import Findings, read_findings
from market.protocol.listings.listing import Listing, read_listing
from market.protocol.records.book import Book, alive
from market.protocol.records.envelope import RECORD_BYTES_MAX, Record, open_record
from market.protocol.records.exchange import differing, summary
from market.protocol.records.key_status import Standing
from runtime.database import open_file, read_sessions, write_sessions

_SCHEMA = 1
# Rows that another gateway commits late may have smaller numbers than rows already seen.
_LATE_ROWS = 1000
_CHUNK = 400

Watcher = Callable[[Sequence[Record], str], None]
"""Called with new records and their source, in any thread."""


@dataclass(frozen=True, slots=True)
class KeeperPolicy:
    """A keeper's trust in each source. `always` are identities whose records always have room."""

    sources: Sources = field(default_factory=Sources)
    bounds: RecordBounds = field(default_factory=RecordBounds)
    always: Container[str] = ()
    allows_loopback: bool = False


class RecordKeeper:
    """Accept untrusted records, keep what counts, and answer questions about them. Thread-safe.

    Args:
        kept_in: the gateway's database, or a file of its own, made on first use.
        clock_ms: milliseconds since 1970.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database fails. Records that `add` took are then known until the next
            start.
        DatabaseVersionUnknown: another version wrote the file.
    """

    def __init__(
        self, kept_in: Engine | Path, clock_ms: Callable[[], int], keeping: KeeperPolicy | None = None
    ) -> None:
        self._engine = (
            kept_in if isinstance(kept_in, Engine) else open_file(kept_in, [record_table], _SCHEMA, pool_size=2)
        )
        self._owns_engine = isinstance(kept_in, Path)
        self._clock_ms = clock_ms
        self._keeping = keeping or KeeperPolicy()
        self._known = KnownRecords(self._keeping.sources, self._keeping.bounds, self._keeping.always)
        self._lock = threading.Lock()
        # Held longer than `_lock`, so that readers never wait for it.
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
        """Call `watcher` with every newly known record."""
        self._watchers.append(watcher)

    def add(self, raw: Iterable[bytes], source: str) -> int:
        """Take records from `source` that are new, valid and have room; return how many were taken.

        Costs about a third of a millisecond of CPU for each new record.
        """
        now_ms = self._clock_ms()
        read = [each for one in raw if (each := self._open(one, now_ms))]
        with self._writing:
            with self._lock:
                change = self._known.take(read, source, now_ms)
                self._reset_view(bool(change.taken or change.dropped))
            self._delete(each.digest for each in change.dropped)
            if change.taken:
                self._insert(change.taken, source)
        if change.taken:
            for watcher in self._watchers:
                watcher(change.taken, source)
        return len(change.taken)

    def standing(self, identity: str, key: str) -> Standing:
        """Return the standing of an identity's key, by all known statements."""
        return self._known.standing(identity, key)

    def statements_of(self, identity: str) -> list[bytes]:
        """Return an identity's statements about its keys: revocations, founding, rotations."""
        with self._lock:
            return [each.raw for each in self._known.statements_of(identity)]

    def listings(self, now_ms: int) -> list[tuple[Record, Listing]]:
        """Return the listings that are valid now, to the second."""
        with self._lock:
            if self._view.offers_s != now_ms // 1000:
                living = alive(self._whole(), now_ms, self._known.standing)
                self._offers = {each.digest: self._offer(each) for each in living if each.kind == "listing"}
                self._findings = [(each.issuer, read_findings(each)) for each in living if each.kind == "findings"]
                self._view.offers_s = now_ms // 1000
            return list(self._offers.values())

    def findings(self, now_ms: int) -> list[tuple[str, Findings]]:
        """Return the auditors' current findings with the auditors' identities, to the second."""
        self.listings(now_ms)
        with self._lock:
            return list(self._findings)

    def summary(self) -> tuple[str, ...]:
        """Return a hash per bucket of records, with which two gateways find their differences."""
        with self._lock:
            self._view.summary = self._view.summary or summary(self._whole())
            return self._view.summary

    def differing(self, other_summary: Sequence[str]) -> list[Record]:
        """Return records that a gateway with this summary may lack: revocations first, listings last.

        Records of one kind come in random order, because there may be more than one answer holds.

        Raises:
            RecordInvalid: it is not a summary.
        """
        with self._lock:
            found = differing(self._whole(), other_summary)
        random.shuffle(found)
        order = {kind: n for n, kind in enumerate(STATEMENTS)}
        return sorted(found, key=lambda each: order.get(each.kind, len(order)))

    def sweep(self) -> None:
        """Forget records that expired long ago."""
        with self._writing:
            with self._lock:
                gone = self._known.sweep(self._clock_ms()).dropped
                self._reset_view(bool(gone))
            self._delete(each.digest for each in gone)

    def refresh(self) -> list[str]:
        """Take records that other processes stored in the same table; return digests of those worth nothing."""
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
            # The most trusted source first: an issuer known from several sources counts for that one.
            for source in sorted(by_source, key=self._keeping.sources.rank, reverse=True):
                self._known.take(by_source[source], source, now_ms)
            self._reset_view(bool(by_source))
            return [digest for _, digest, _, raw in kept if not self._known.has(bytes(raw))]

    def _reset_view(self, has_changed: bool) -> None:
        if has_changed:
            self._view = _View()

    def _open(self, raw: bytes, now_ms: int) -> Record | None:
        """Return the record; None if it is known already or invalid."""
        if len(raw) > RECORD_BYTES_MAX or self._known.has(raw):
            return None
        try:
            record = open_record(raw)
            check_received(record, now_ms, allows_loopback=self._keeping.allows_loopback)
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
                # Another gateway stored the same records at this moment.
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
    """Values computed from the records, until they change."""

    book: Book | None = None
    summary: tuple[str, ...] = ()
    offers_s: int = -1
