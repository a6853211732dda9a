"""Work that must finish once it has begun, even if the caller stops waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result. `work` must end by itself.

    Raises what `work` raises. A cancellation is raised only after `work` has ended.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    done = task.result()
    if cancelled is not None:
        raise cancelled
    return done
