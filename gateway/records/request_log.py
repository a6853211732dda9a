"""What became of every request, written in batches behind the answers' backs, and kept for a while."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import structlog
from sqlalchemy import Row, delete, select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from accounting.ledger.inserting import Row as Values
from accounting.ledger.inserting import insert_rows
from gateway.records.decisions import pack, unpack
from gateway.records.tables import request_table
from gateway.routing.decision import Decision
from gateway.settings import RequestLogSettings

log = structlog.get_logger(__name__)

QUEUE_MAX = 6_000
BATCH_MAX = 1000
ROWS_MAX = 1000
# Old rows go in small portions: on SQLite the books wait for each.
PRUNED_MAX = 1000
PRUNE_EVERY_S = 3600.0
PRUNE_PAUSE_S = 0.2

_KEEP = RequestLogSettings()
_DAY_NS = 86_400 * 10**9
_DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout)


# Not frozen: thousands are made each second, and frozen ones take three times as long.
@dataclass(slots=True)
class RequestEntry:
    """One finished request. `decision` explains the route, as data when it is read, and `reason` in a sentence.

    Who writes an entry leaves the reason to the decision. `error` is empty for an answer. `served_model` is the
    one that answered, where that is not the one asked for.
    """

    request_id: str
    started_ns: int
    key_id: str
    model: str
    kind: str
    lane: str
    backend: str
    reason: str
    decision: Decision | dict[str, Any]
    status: int
    outcome: str
    error: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: int | None
    duration_ms: int
    charge_nano: int
    event_seq: int | None
    served_model: str | None = None


class RequestLog:
    """Takes entries without waiting; a thread of its own writes them, and removes what is old or too much."""

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], keep: RequestLogSettings = _KEEP
    ) -> None:
        self._read = read
        self._write = write
        self._keep = keep
        self._entries: deque[RequestEntry] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Writes what is waiting, as far as that takes no longer than `timeout_s`."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.error("request log not written to its end", entries=len(self._entries))

    def add_all(self, entries: Sequence[RequestEntry]) -> int:
        """Take entries, and return how many there was no room for.

        The books have the money; the log may lose an entry rather than hold up an answer.
        """
        with self._changed:
            taken = entries[: max(0, QUEUE_MAX - len(self._entries))]
            self._entries.extend(taken)
            self._changed.notify()
        lost = len(entries) - len(taken)
        if lost:
            log.warning("request log is full", entries=lost, request_id=entries[-1].request_id)
        return lost

    def newest(self, limit: int = 50, key_id: str | None = None) -> list[RequestEntry]:
        """The last requests of one key, or of all."""
        query = select(request_table).order_by(request_table.c.started_ns.desc()).limit(min(limit, ROWS_MAX))
        if key_id is not None:
            query = query.where(request_table.c.key_id == key_id)
        with self._read() as session:
            return [_entry(row) for row in session.execute(query)]

    def find(self, request_id: str) -> RequestEntry | None:
        with self._read() as session:
            row = session.execute(
                select(request_table).where(request_table.c.request_id == request_id)
            ).one_or_none()
        return _entry(row) if row else None

    def _run(self) -> None:
        open_, prune_at_s = True, 0.0
        while open_:
            batch, open_ = self._next_batch(prune_at_s)
            if batch:
                self._store(batch)
            if open_ and time.monotonic() >= prune_at_s:
                prune_at_s = time.monotonic() + (PRUNE_PAUSE_S if self._prune() else PRUNE_EVERY_S)

    def _next_batch(self, until_s: float) -> tuple[list[RequestEntry], bool]:
        """What came, waiting for the first of it, and whether more may come."""
        with self._changed:
            patience_s = max(0.0, until_s - time.monotonic())
            self._changed.wait_for(lambda: self._entries or not self._open, timeout=patience_s)
            batch = [self._entries.popleft() for _ in range(min(BATCH_MAX, len(self._entries)))]
            return batch, self._open or bool(self._entries)

    def _store(self, batch: list[RequestEntry]) -> None:
        """All at once; where one entry cannot be written, each by itself, so that the others are."""
        error = last_error = self._insert(batch)
        if error is None:
            return
        lost = 0
        for entry in batch:
            # Where the database is away, each attempt waits for it: one is enough.
            if not isinstance(error, _DATABASE_AWAY):
                error = self._insert([entry])
            if error is not None:
                lost, last_error = lost + 1, error
        if lost and last_error:
            log.error("request log not written", entries=lost, reason=str(last_error.__cause__ or last_error))

    def _insert(self, batch: list[RequestEntry]) -> Exception | None:
        """Why it could not be written. The thread's edge: whatever it is must not end the log."""
        try:
            rows = [_row(entry) for entry in batch]
            with self._write() as session, session.begin():
                insert_rows(session.connection(), request_table, rows)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _prune(self) -> bool:
        """Remove a portion of what is too old or too much; whether there may be more of it."""
        try:
            last_ns = self._last_to_go_ns()
            oldest = (
                select(request_table.c.request_id)
                .where(request_table.c.started_ns <= last_ns)
                .order_by(request_table.c.started_ns)
                .limit(PRUNED_MAX)
            )
            with self._write() as session, session.begin():
                removed = session.execute(delete(request_table).where(request_table.c.request_id.in_(oldest)))
                return bool(removed.rowcount == PRUNED_MAX)  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - as above
            log.error("request log not pruned", reason=str(error.__cause__ or error))
            return False

    def _last_to_go_ns(self) -> int:
        """Start of the newest request that is not kept any more."""
        too_old_ns = time.time_ns() - self._keep.days_max * _DAY_NS
        started = request_table.c.started_ns
        with self._read() as session:
            beyond = select(started).order_by(started.desc()).offset(self._keep.rows_max).limit(1)
            return max(too_old_ns, session.execute(beyond).scalar() or 0)


_BEFORE_DECISION = ("request_id", "started_ns", "key_id", "model", "kind", "lane", "backend")
_AFTER_DECISION = ("status", "outcome", "error", "prompt_tokens", "completion_tokens", "ttft_ms", "duration_ms")
_MONEY = ("charge_nano", "event_seq")
_first, _rest = attrgetter(*_BEFORE_DECISION), attrgetter(*_AFTER_DECISION, *_MONEY, "served_model")


def _row(entry: RequestEntry) -> Values:
    """The columns in the table's order, with text that every database takes."""
    values = (*_first(entry), _decision_text(entry), *_rest(entry))
    text = entry.model + entry.backend + entry.error + (entry.served_model or "")
    return values if text.isascii() and "\0" not in text else tuple(map(_storable, values))


def _decision_text(entry: RequestEntry) -> str:
    decision = entry.decision
    if isinstance(decision, dict):
        return msgspec.json.encode(decision | {"reason": entry.reason}).decode()
    return pack(decision)


def _storable(value: Any) -> Any:
    """PostgreSQL knows no NUL, and nobody half a surrogate pair."""
    return value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value


def _entry(row: Row[Any]) -> RequestEntry:
    values = dict(row._mapping)
    decision = unpack(values["decision"])
    return RequestEntry(**values | {"decision": decision, "reason": decision["reason"]})
