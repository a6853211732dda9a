"""The pool's tests ask fakes over real sockets, on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from gateway.lanes.pool.lane import PoolLane
from gateway.settings.pool import PoolBackend, PoolSettings

PATIENCE_S = 60.0

Opens = Callable[[PoolSettings], AbstractAsyncContextManager[PoolLane]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def open_lane(settings: PoolSettings) -> AsyncIterator[PoolLane]:
    lane = PoolLane(settings)
    try:
        await lane.start()
        yield lane
    finally:
        await lane.stop()


@pytest.fixture
def opened() -> Opens:
    return open_lane


def one(base_url: str, **given: object) -> PoolSettings:
    """A pool of one backend called desk, asked often."""
    pool = {name: given.pop(name) for name in tuple(given) if name in PoolSettings.model_fields}
    backend = PoolBackend.model_validate({"name": "desk", "base_url": base_url, **given})
    return PoolSettings.model_validate({"backends": (backend,), "probe_s": 0.2, "probe_timeout_s": 3.0, **pool})


async def until(said: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not said():
            await asyncio.sleep(0.02)
