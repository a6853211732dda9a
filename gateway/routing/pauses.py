"""The operator's switch: buying on a lane, or selling, is paused until an operator resumes it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import structlog
from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from gateway.identity import audit
from gateway.identity.audit import Actor
from gateway.routing.tables import pause_table

log = structlog.get_logger(__name__)

Pausable = Literal["cloud", "market", "selling"]
"""The switches: lanes to third parties' machines, and selling on own machines."""

# Another gateway of the same database sees a change within this time.
LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Pause:
    """A paused switch; `actor` is the name in the audit log."""

    name: Pausable
    since_ns: int
    actor: str


class Pauses:
    """Stored in the database, so that pauses survive restarts.

    `tell` receives all paused switches after every change.
    """

    def __init__(
        self,
        read: Callable[[], Session],
        write: Callable[[], Session],
        tell: Callable[[frozenset[Pausable]], None],
    ) -> None:
        self._read = read
        self._write = write
        self._tell = tell
        self._now: tuple[Pause, ...] = ()
        self._task: asyncio.Task[None] | None = None

    @property
    def now(self) -> tuple[Pause, ...]:
        """The current pauses. Changes by another gateway show after some seconds, own changes immediately."""
        return self._now

    def start(self) -> None:
        """Read now, and then periodically. Raises SQLAlchemyError if the database is unavailable."""
        self._take(self._stored())
        self._task = asyncio.create_task(self._keep_looking(), name="pauses")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def pause(self, name: Pausable, by: Actor) -> Pause:
        """Pause it from now on. If it is already paused, nothing changes."""
        found = await asyncio.to_thread(self._put, Pause(name, time.time_ns(), by.name), by)
        self._take(await asyncio.to_thread(self._stored))
        return found

    async def resume(self, name: Pausable, by: Actor) -> None:
        """Resume it. If it is not paused, nothing changes."""
        await asyncio.to_thread(self._remove, name, by)
        self._take(await asyncio.to_thread(self._stored))

    def _put(self, pause: Pause, by: Actor) -> Pause:
        with self._write() as session, session.begin():
            before = self._of(session, pause.name)
            if before is not None:
                return before
            session.execute(pause_table.insert().values(asdict(pause)))
            audit.record(session, by, "pause.begin", f"pause:{pause.name}")
        return pause

    def _remove(self, name: Pausable, by: Actor) -> None:
        with self._write() as session, session.begin():
            before = self._of(session, name)
            if before is None:
                return
            session.execute(delete(pause_table).where(pause_table.c.name == name))
            audit.record(session, by, "pause.end", f"pause:{name}", before=asdict(before))

    def _of(self, session: Session, name: Pausable) -> Pause | None:
        row = session.execute(select(pause_table).where(pause_table.c.name == name)).one_or_none()
        return Pause(*row) if row else None

    def _stored(self) -> tuple[Pause, ...]:
        with self._read() as session:
            return tuple(Pause(*row) for row in session.execute(select(pause_table).order_by(pause_table.c.name)))

    def _take(self, pauses: tuple[Pause, ...]) -> None:
        if pauses != self._now:
            self._now = pauses
            self._tell(frozenset(pause.name for pause in pauses))

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self._take(await asyncio.to_thread(self._stored))
            except SQLAlchemyError as error:
                log.warning("pauses not read", reason=type(error).__name__)
