"""Limits as a service: alone in this process, or shared through Redis with others."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from sqlalchemy.orm import Session

from gateway.limits.limits import Limits, Source
from gateway.limits.local import LocalSource, Reader
from gateway.limits.past_use import used_since
from gateway.settings.limits import RedisSettings


@asynccontextmanager
async def open_limits(
    settings: RedisSettings, sessions: Callable[[], Session], settled: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Limits]:
    """Running until the block ends; `sessions` read what the ledger knows from before.

    `settled` returns when all requests are booked that had ended when it was called, or cannot be.
    """
    async with AsyncExitStack() as stack:
        source = await _source(settings, used_since(sessions), settled, stack)
        limits = Limits(source)
        sweeping = asyncio.create_task(limits.keep_small(), name="limit sweep")
        stack.push_async_callback(_end, sweeping)
        yield limits


async def _source(
    settings: RedisSettings, read: Reader, settled: Callable[[], Awaitable[None]], stack: AsyncExitStack
) -> Source:
    if settings.url is None:
        alone = LocalSource(read)
        stack.push_async_callback(alone.stop)
        return alone
    # redis takes a fifth of a second to import, and most gateways are alone.
    from gateway.limits.central import Central
    from gateway.limits.leases import LEASE_S, LeaseSource

    central = Central(settings.url.get_secret_value(), settings.prefix, settings.timeout_s, LEASE_S)
    source = LeaseSource(central, read, settled)
    source.start()
    stack.push_async_callback(source.stop)
    return source


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
