"""Wait until a paid request is in the ledger: only then may its answer count as done.

An answer that counts is never asked for again. If it was written first, a crash in between would give it away for
free.
"""

import asyncio

import structlog

from gateway.billing.settlement_worker import Booked

log = structlog.get_logger(__name__)

_PATIENCE_S = 10.0


class Receipts:
    """Belongs to one event loop; `note` is called from the settlement thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[str, asyncio.Event] = {}

    def expect(self, request_id: str) -> None:
        """Register a request before it is asked; `forget` must follow."""
        self._awaited[request_id] = asyncio.Event()

    async def wait(self, request_id: str) -> None:
        """Wait until the request is booked, or on disk to be booked, for a limited time."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._awaited[request_id].wait()
        except TimeoutError:
            log.warning("request not posted in time", request_id=request_id, seconds=_PATIENCE_S)

    def forget(self, request_id: str) -> None:
        """Stop waiting for a request."""
        del self._awaited[request_id]

    def note(self, booked: list[Booked]) -> None:
        """Note that these requests are booked, or on disk."""
        if not self._awaited:
            return
        ids = [ended.settlement.usage.request_id for ended, _ in booked]
        self._loop.call_soon_threadsafe(self._tell, ids)

    def _tell(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if event := self._awaited.get(request_id):
                event.set()
