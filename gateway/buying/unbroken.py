"""What must come to its end once it has begun, whoever stops waiting for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` does. Whoever is cancelled meanwhile is so when it has ended; it must end by itself."""
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
