"""The result of every request, written in batches in the background, and kept for a limited time."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import Row, delete, select
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from accounting.ledger.bulk_insert import Row as Values
from accounting.ledger.bulk_insert import insert_rows
from gateway.billing.decisions import pack, sentence, unpack
from gateway.billing.request_filter import RequestFilter, among_newest, conditions, first_out_of_sight, older_than
from gateway.billing.tables import request_table
from gateway.pages import Cursor
from gateway.routing.decision import Decision
from gateway.settings import RequestLogSettings
from runtime.database import allow_s

log = structlog.get_logger(__name__)

QUEUE_MAX = 6_000
BATCH_MAX = 1000
ROWS_MAX = 1000
# Delete old rows in small portions, because on SQLite the ledger waits for each.
PRUNED_MAX = 1000
PAGE_TIMEOUT_S = 10
PRUNE_EVERY_S = 3600.0
PRUNE_PAUSE_S = 0.2
# The end of a page's search range, found by reading the rows in range; valid for some seconds.
_HORIZON_S = 5.0

_KEEP = RequestLogSettings()
_DAY_NS = 86_400 * 10**9
_DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)


class RequestEntry(msgspec.Struct, frozen=True, gc=False):
    """One finished request. `decision` explains the route, as data when it is read, and `reason` in a sentence.

    A writer leaves the reason to the decision. `error` is empty for an answer. `served_model` is the model that
    answered, if it is not the requested one. `decided_ms` is the time from the request's start until its backend
    was chosen and had a free slot; the decision carries it.
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
    decided_ms: int | None = None


class RequestPage(NamedTuple):
    """Rows, newest first, and the start of the next page; None if there is none.

    A page of a long log may have fewer rows than requested, or none, and still have a next page.
    """

    rows: list[RequestEntry]
    next: Cursor | None


class RequestLog:
    """Takes entries without waiting; its thread writes them, and deletes old and excess ones."""

    def __init__(
        self, read: Callable[[], Session], write: Callable[[], Session], keep: RequestLogSettings = _KEEP
    ) -> None:
        self._read = read
        self._write = write
        self._keep = keep
        self._entries: deque[RequestEntry] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._horizon: tuple[float, int | None] = (-math.inf, None)
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write waiting entries for at most `timeout_s` seconds."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.error("request log not fully written", entries=len(self._entries))

    def add_all(self, entries: Sequence[RequestEntry]) -> int:
        """Take entries; return how many had no room.

        The ledger has the money; the log may lose an entry but never delays an answer.
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
        """Return the last requests of one key, or of all."""
        query = select(request_table).order_by(request_table.c.started_ns.desc()).limit(min(limit, ROWS_MAX))
        if key_id is not None:
            query = query.where(request_table.c.key_id == key_id)
        with self._read() as session:
            return [_entry(row) for row in session.execute(query)]

    def page(
        self,
        filters: RequestFilter | None = None,
        limit: int = 50,
        before: Cursor | None = None,
        stretches: int = 1,
        *,
        has_decisions: bool = True,
    ) -> RequestPage:
        """Return the matching rows that are older than the end of the last page.

        If a stretch of the log has no match, up to `stretches` of them are searched. Without decisions each row
        has only its reason: decoding the decisions is half of the cost of a page.
        """
        read = _entry if has_decisions else _short_entry
        found = self._stretch(filters, limit, before, read)
        while not found.rows and found.next is not None and stretches > 1:
            stretches -= 1
            found = self._stretch(filters, limit, found.next, read)
        return found

    def _stretch(
        self,
        filters: RequestFilter | None,
        limit: int,
        before: Cursor | None,
        read: Callable[[Row[Any]], RequestEntry],
    ) -> RequestPage:
        limit = max(1, min(limit, ROWS_MAX))
        filters = filters or RequestFilter()
        column, horizon_ns = request_table.c, None
        query = select(request_table).limit(limit + 1)
        query = query.order_by(column.started_ns.desc(), column.request_id.desc())
        if before is not None:
            query = query.where(older_than(before))
        with self._read() as session:
            allow_s(session, PAGE_TIMEOUT_S)
            found: Sequence[Row[Any]] = ()
            if before is None and filters.is_of_users:
                found = session.execute(query.where(*among_newest(filters))).all()
            if len(found) <= limit:
                horizon_ns = None if filters.is_indexed else self._horizon_ns(session, before)
                query = query.where(*conditions(filters))
                if horizon_ns is not None:
                    query = query.where(column.started_ns >= horizon_ns)
                found = session.execute(query).all()
        rows = [read(row) for row in found[:limit]]
        if len(found) > limit:
            return RequestPage(rows, Cursor(rows[-1].started_ns, rows[-1].request_id))
        return RequestPage(rows, None if horizon_ns is None else Cursor(horizon_ns, ""))

    def _horizon_ns(self, session: Session, before: Cursor | None) -> int | None:
        """Return the start of the oldest row that a page searches; None if it may search all rows."""
        if before is not None:
            found: int | None = session.scalar(first_out_of_sight(before))
            return found
        until_s, horizon_ns = self._horizon
        if time.monotonic() >= until_s:
            horizon_ns = session.scalar(first_out_of_sight(None))
            self._horizon = (time.monotonic() + _HORIZON_S, horizon_ns)
        return horizon_ns

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
        """Wait for an entry; return the next entries, and whether more may come."""
        with self._changed:
            patience_s = max(0.0, until_s - time.monotonic())
            self._changed.wait_for(lambda: self._entries or not self._open, timeout=patience_s)
            batch = [self._entries.popleft() for _ in range(min(BATCH_MAX, len(self._entries)))]
            return batch, self._open or bool(self._entries)

    def _store(self, batch: list[RequestEntry]) -> None:
        """Write all entries together; if one cannot be written, write each by itself to save the others."""
        error = last_error = self._insert(batch)
        if error is None:
            return
        lost = 0
        for entry in batch:
            # If the database is unavailable, each attempt waits for it, so one is enough.
            if not isinstance(error, _DATABASE_AWAY):
                error = self._insert([entry])
            if error is not None:
                lost, last_error = lost + 1, error
        if lost and last_error:
            log.error("request log not written", entries=lost, reason=str(last_error.__cause__ or last_error))

    def _insert(self, batch: list[RequestEntry]) -> Exception | None:
        """Return why it could not be written. The thread's edge: no error may end the log."""
        try:
            rows = [_row(entry) for entry in batch]
            with self._write() as session, session.begin():
                insert_rows(session.connection(), request_table, rows)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _prune(self) -> bool:
        """Delete a portion of old and excess rows; return whether there may be more."""
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
        """Return the start of the newest request that is past its retention."""
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
    """Return the columns in the table's order, with text that every database accepts."""
    values = (*_first(entry), _decision_text(entry), *_rest(entry))
    text = entry.model + entry.backend + entry.error + (entry.served_model or "")
    return values if text.isascii() and "\0" not in text else tuple(map(_storable, values))


def _decision_text(entry: RequestEntry) -> str:
    decision = entry.decision
    if isinstance(decision, dict):
        return msgspec.json.encode(decision | {"reason": entry.reason, "decided_ms": entry.decided_ms}).decode()
    return pack(decision, entry.decided_ms)


def _storable(value: Any) -> Any:
    """Remove NUL, which PostgreSQL cannot store; replace lone surrogates, which UTF-8 cannot encode."""
    return value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value


def _entry(row: Row[Any]) -> RequestEntry:
    values = dict(row._mapping)
    decision = unpack(values["decision"], values["model"])
    decided_ms = decision.pop("decided_ms", None)
    return RequestEntry(**values | {"decision": decision, "reason": decision["reason"], "decided_ms": decided_ms})


def _short_entry(row: Row[Any]) -> RequestEntry:
    values = dict(row._mapping)
    return RequestEntry(**values | {"decision": {}, "reason": sentence(values["decision"], values["model"])})
