"""Keeps cached callers current: polls for changes by other processes."""

import asyncio

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.identity.keys import Keys

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0


class KeyWatch:
    """Other gateways and commands change keys, users and limits in the same database."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_looking(), name="key watch")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._keys.catch_up)
            except (OSError, SQLAlchemyError) as error:
                # Cached callers are used for another CACHE_S, then each is queried.
                log.warning("key changes not read", reason=type(error).__name__)
            await asyncio.sleep(LOOK_EVERY_S)
