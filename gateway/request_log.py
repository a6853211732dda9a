"""What became of every request, written in batches behind the answers' backs."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from sqlalchemy import Row, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gateway.tables import request_table

log = structlog.get_logger(__name__)

QUEUE_MAX = 20_000
BATCH_MAX = 500
ROWS_MAX = 1000


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One finished request. `decision` explains the route; `error` is empty for an answer."""

    request_id: str
    started_ns: int
    key_id: str
    model: str
    kind: str
    lane: str
    backend: str
    reason: str
    decision: dict[str, Any]
    status: int
    outcome: str
    error: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: int | None
    duration_ms: int
    charge_nano: int
    event_seq: int | None


class RequestLog:
    """Takes entries without waiting; a thread of its own writes them."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._write = write
        self._entries: queue.Queue[RequestEntry | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Writes what is waiting."""
        self._entries.put(None)
        self._thread.join(timeout_s)

    def add(self, entry: RequestEntry) -> None:
        """The books have the money; the log may lose an entry rather than hold up an answer."""
        try:
            self._entries.put_nowait(entry)
        except queue.Full:
            log.warning("request log is full", request_id=entry.request_id)

    def newest(self, limit: int = 50) -> list[RequestEntry]:
        query = select(request_table).order_by(request_table.c.started_ns.desc()).limit(min(limit, ROWS_MAX))
        with self._read() as session:
            return [_entry(row) for row in session.execute(query)]

    def find(self, request_id: str) -> RequestEntry | None:
        with self._read() as session:
            row = session.execute(
                select(request_table).where(request_table.c.request_id == request_id)
            ).one_or_none()
        return _entry(row) if row else None

    def _run(self) -> None:
        open_ = True
        while open_:
            batch: list[RequestEntry] = []
            entry = self._entries.get()
            while entry is not None:
                batch.append(entry)
                if len(batch) == BATCH_MAX or self._entries.empty():
                    break
                entry = self._entries.get_nowait()
            open_ = entry is not None
            if batch:
                self._store(batch)

    def _store(self, batch: list[RequestEntry]) -> None:
        rows = [_row(entry) for entry in batch]
        try:
            with self._write() as session, session.begin():
                session.execute(request_table.insert(), rows)
        except SQLAlchemyError as error:
            log.error("request log not written", entries=len(batch), reason=str(error.__cause__ or error))


def _row(entry: RequestEntry) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in RequestEntry.__slots__}
    return row | {"decision": orjson.dumps(entry.decision).decode()}


def _entry(row: Row[Any]) -> RequestEntry:
    values = dict(row._mapping)
    return RequestEntry(**values | {"decision": orjson.loads(values["decision"])})
