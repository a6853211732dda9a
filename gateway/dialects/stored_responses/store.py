"""Stores responses for a limited time: available at once, written to the database by a background thread."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import Row, delete, select
from sqlalchemy.orm import Session

from gateway.dialects.stored_responses.pruner import prune
from gateway.dialects.stored_responses.tables import response_table
from gateway.errors import DATABASE_AWAY, StorageUnavailable
from gateway.identity.caller import Caller
from gateway.settings.base import PRIVACY_RANK, Privacy
from gateway.settings.responses import ResponsesSettings
from gateway.storage import Storage
from runtime.errors import NotFound, Overloaded, RequestInvalid

log = structlog.get_logger(__name__)

QUEUE_MAX = 2000
QUEUE_BYTES_MAX = 128 * 2**20
RESPONSE_BYTES_MAX = 16 * 2**20
CHAIN_MAX = 500
CHAIN_BYTES_MAX = 32 * 2**20
PRUNE_EVERY_S = 600.0
_AGAIN_S = 1.0

_KEEP = ResponsesSettings()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`input` and `answer` are JSON text: the items that were sent, and the response object.

    `privacy` is the label of its request: every continuation has at least this label.
    """

    id: str
    owner: str
    previous_id: str | None
    privacy: Privacy
    created_ns: int
    size_bytes: int
    input: str
    answer: str


@dataclass(frozen=True, slots=True)
class _Removal:
    id: str
    size_bytes: int = 0


def owner_of(caller: Caller) -> str:
    """Return the owner whose responses a caller may see: the same user in the same organization."""
    return f"{caller.organization_id}/{caller.user_id}"


class ResponseStore:
    """Stores, finds and deletes responses. It also finds those not written yet."""

    def __init__(
        self,
        read: Callable[[], Session],
        write: Callable[[], Session],
        keep: ResponsesSettings = _KEEP,
        storage: Storage | None = None,
    ) -> None:
        """`storage` is the gateway's data directory, if the tables are there."""
        self._storage = storage
        self._read = read
        self._write = write
        self._keep = keep
        self._jobs: queue.Queue[StoredResponse | _Removal | None] = queue.Queue(QUEUE_MAX)
        self._lock = threading.Lock()
        self._waiting: dict[str, StoredResponse | _Removal] = {}
        self._waiting_bytes = 0
        self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stored responses", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write waiting responses for `timeout_s` seconds at most."""
        self._stopping.set()
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            log.error("stored responses not fully written", waiting=self._jobs.qsize())
        else:
            self._thread.join(timeout_s)

    def keeps(self, privacy: Privacy) -> bool:
        """Whether responses of that label may be stored."""
        return self._keep.store and PRIVACY_RANK[privacy] <= PRIVACY_RANK[self._keep.privacy_max]

    async def check(self) -> None:
        """Raises StorageUnavailable while responses cannot be written."""
        if self._is_failing:
            raise StorageUnavailable("stored responses cannot be written to the database")
        if self._storage:
            await self._storage.check()

    def add(self, response: StoredResponse) -> None:
        """Queue a response for storing. Never waits and never raises; if there is no room, it logs the loss."""
        if response.size_bytes > RESPONSE_BYTES_MAX or not self._put(response):
            log.warning("response not stored", response_id=response.id, size_bytes=response.size_bytes)

    async def find(self, owner: str, response_id: str) -> StoredResponse:
        """Return a response. Raises NotFound, also for another owner's."""
        return await asyncio.to_thread(self._find, owner, response_id)

    async def chain(self, owner: str, response_id: str) -> list[StoredResponse]:
        """Return a response and those before it, oldest first. Raises NotFound and RequestInvalid."""
        return await asyncio.to_thread(self._chain, owner, response_id)

    async def remove(self, owner: str, response_id: str) -> None:
        """Delete a response. Raises NotFound and Overloaded."""
        await asyncio.to_thread(self._find, owner, response_id)
        if not self._put(_Removal(response_id)):
            raise Overloaded("Too many writes are waiting. Try again in a second.")

    def _put(self, job: StoredResponse | _Removal) -> bool:
        with self._lock:
            if self._waiting_bytes + job.size_bytes > QUEUE_BYTES_MAX:
                return False
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                return False
            self._waiting[job.id] = job
            self._waiting_bytes += job.size_bytes
            return True

    def _find(self, owner: str, response_id: str) -> StoredResponse:
        found = self._waiting.get(response_id) or self._written(response_id)
        if isinstance(found, StoredResponse) and found.owner == owner:
            return found
        raise NotFound(f"Stored response {response_id[:80]!r} not found.")

    def _written(self, response_id: str) -> StoredResponse | None:
        with self._read() as session:
            row = session.execute(select(response_table).where(response_table.c.id == response_id)).one_or_none()
        return _of_row(row) if row else None

    def _chain(self, owner: str, response_id: str) -> list[StoredResponse]:
        chain: list[StoredResponse] = []
        next_id: str | None = response_id
        size_bytes = 0
        while next_id:
            chain.append(self._find(owner, next_id))
            next_id = chain[-1].previous_id
            size_bytes += chain[-1].size_bytes
            if len(chain) > CHAIN_MAX or size_bytes > CHAIN_BYTES_MAX:
                text = "previous_response_id: the conversation is too long; start a new one"
                raise RequestInvalid(text, param="previous_response_id", code="conversation_too_long")
        return chain[::-1]

    def _run(self) -> None:
        prune_at_s = 0.0
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, prune_at_s - time.monotonic()))
            except queue.Empty:
                prune(self._write, self._keep)
                prune_at_s = time.monotonic() + PRUNE_EVERY_S
                continue
            if job is None:
                return
            self._carry_out(job)
            with self._lock:
                self._waiting_bytes -= job.size_bytes
                if self._waiting.get(job.id) is job:
                    del self._waiting[job.id]

    def _carry_out(self, job: StoredResponse | _Removal) -> None:
        """Retry until the database accepts the job, because the client was told that it is stored."""
        while not self._try(job):
            self._is_failing = True
            if self._stopping.wait(_AGAIN_S):
                log.error("response not stored", response_id=job.id, reason="the gateway stops")
                return
        self._is_failing = False

    def _try(self, job: StoredResponse | _Removal) -> bool:
        """Return False if the database does not accept the job now. No error may end the thread."""
        try:
            with self._write() as session, session.begin():
                if isinstance(job, StoredResponse):
                    session.execute(response_table.insert(), [_to_row(job)])
                else:
                    session.execute(delete(response_table).where(response_table.c.id == job.id))
        except DATABASE_AWAY as error:
            if not self._is_failing:
                log.warning("response not stored yet", response_id=job.id, reason=str(error.__cause__ or error))
            return False
        except Exception as error:  # noqa: BLE001
            log.error("response not stored", response_id=job.id, reason=str(error.__cause__ or error))
        return True


def _to_row(response: StoredResponse) -> dict[str, object]:
    return {name: getattr(response, name) for name in StoredResponse.__slots__}


def _of_row(row: Row[tuple[object, ...]]) -> StoredResponse:
    values = dict(row._mapping)
    return StoredResponse(**{name: values[name] for name in StoredResponse.__slots__})
