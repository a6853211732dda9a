"""Work left over from requests that do not wait for it, such as stopping the slower of two backends."""

import asyncio
from collections.abc import Coroutine

import structlog

log = structlog.get_logger(__name__)

_STOP_S = 5.0


class Afterwork:
    """Owns the tasks that outlive their requests. One event loop owns it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Run the work beside the request and independently of its result. The work must end by itself."""
        task = asyncio.create_task(work, name="afterwork")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Returns when all work is done or, after some seconds, cancelled."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("task after the answer failed", exc_info=problem)
