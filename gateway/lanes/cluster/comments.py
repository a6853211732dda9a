"""Comments at the beginning of a stream whose model is being loaded, so that clients and proxies do not time out."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from gateway.lanes.base import Call, begun

# Clients and proxies tolerate this silence.
SILENCE_S = 15.0
LOADING = b": loading\n\n"


def may_have_comments(call: Call) -> bool:
    """Return whether the answer may begin before its first text. A request with a deadline gets an error after it."""
    extras = call.request.millrace
    return call.request.is_stream and (extras is None or extras.deadline_s is None)


async def with_comments(opening: Coroutine[Any, Any, AsyncGenerator[bytes]]) -> AsyncGenerator[bytes]:
    """Return the begun generator that `opening` returns. After SILENCE_S, return one that sends comments until then.

    Raises what `opening` raises, also later from the returned generator.
    """
    task = asyncio.create_task(opening, name="answer of a model that is being loaded")
    try:
        await asyncio.wait((task,), timeout=SILENCE_S)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    return task.result() if task.done() else await begun(_commented(task))


async def _commented(task: "asyncio.Task[AsyncGenerator[bytes]]") -> AsyncGenerator[bytes]:
    try:
        yield b""
        while not task.done():
            yield LOADING
            await asyncio.wait((task,), timeout=SILENCE_S)
        async with aclosing(task.result()) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        await _stop(task)


async def _stop(task: "asyncio.Task[AsyncGenerator[bytes]]") -> None:
    """Stop the request, or close its answer if that has begun."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and not task.exception():
        await task.result().aclose()
