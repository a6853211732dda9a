"""Reads counters from the ledger until it answers: a slow ledger refuses no caller and loses no limit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.limits.counters import Counter, CounterKey

log = structlog.get_logger(__name__)

PATIENCE_S = 2.0
"""Seconds that requests wait for the ledger; the caller decides what happens after a later answer."""
AGAIN_S = 1.0
_AT_ONCE = 2


class Lookups:
    """Runs one query for each counter, even if many requests wait for it. One event loop owns it.

    `look` reads the ledger, and `tell` is called once it has answered.
    """

    def __init__(self, look: Callable[[Counter], Awaitable[int]], tell: Callable[[Counter, int], None]) -> None:
        self._look = look
        self._tell = tell
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[CounterKey, asyncio.Task[None]] = {}
        self._first: dict[CounterKey, asyncio.Future[None]] = {}
        """Done once the ledger has answered or failed, or the patience of a waiting request is over."""

    def __contains__(self, key: CounterKey) -> bool:
        """Whether the ledger has not answered yet."""
        return key in self._tasks

    def begin(self, counter: Counter) -> None:
        """Start to query the ledger, unless a query is running."""
        if counter.key not in self._tasks:
            self._first[counter.key] = asyncio.get_running_loop().create_future()
            self._tasks[counter.key] = asyncio.create_task(self._ask(counter), name="limit lookup")

    async def wait(self, counters: Iterable[Counter]) -> list[Counter]:
        """Query the ledger and wait up to PATIENCE_S; returns the counters without an answer."""
        requested = list(counters)
        for counter in requested:
            self.begin(counter)
        first = [self._first[counter.key] for counter in requested]
        await asyncio.wait(first, timeout=PATIENCE_S)
        for future in first:
            if not future.done():
                future.set_result(None)
        return [counter for counter in requested if counter.key in self._tasks]

    async def stop(self) -> None:
        """Stop; waiting requests get the error that the ledger does not answer."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, counter: Counter) -> None:
        first = self._first[counter.key]
        try:
            while (used := await self._try(counter)) is None:
                if not first.done():
                    first.set_result(None)
                await asyncio.sleep(AGAIN_S)
            self._tell(counter, used)
        finally:
            del self._tasks[counter.key], self._first[counter.key]
            if not first.done():
                first.set_result(None)

    async def _try(self, counter: Counter) -> int | None:
        try:
            async with self._at_once:
                return await self._look(counter)
        except (OSError, TimeoutError, SQLAlchemyError) as error:
            log.warning("usage before the start unknown", counter=counter.key, reason=type(error).__name__)
        except Exception:
            # The task must survive any error: waiting requests get an answer, and the next try may succeed.
            log.exception("usage before the start not read")
        return None
