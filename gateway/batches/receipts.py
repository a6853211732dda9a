"""When a request that cost money is in the books: only then may its answer count as had.

An answer that counts is never asked for again. Were it written down first, a crash in between would give it away.
"""

import asyncio

import structlog

from gateway.records.clerk import Booked

log = structlog.get_logger(__name__)

_PATIENCE_S = 10.0


class Receipts:
    """Belongs to one event loop; `note` comes from the clerk's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[str, asyncio.Event] = {}

    def expect(self, request_id: str) -> None:
        """Before it is asked; `forget` must follow."""
        self._awaited[request_id] = asyncio.Event()

    async def wait(self, request_id: str) -> None:
        """Until it is booked, or on disk to be booked; not for ever."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._awaited[request_id].wait()
        except TimeoutError:
            log.warning("request not booked in time", request_id=request_id, seconds=_PATIENCE_S)

    def forget(self, request_id: str) -> None:
        """Nobody waits any more."""
        del self._awaited[request_id]

    def note(self, booked: list[Booked]) -> None:
        """These are booked, or on disk."""
        if not self._awaited:
            return
        ids = [ended.settlement.usage.request_id for ended, _ in booked]
        self._loop.call_soon_threadsafe(self._tell, ids)

    def _tell(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if event := self._awaited.get(request_id):
                event.set()
