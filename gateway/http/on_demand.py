"""An ASGI application that is imported and created on its first request."""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send


class OnDemand:
    """Creates the application once, in a thread, so that streams continue meanwhile."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            async with self._making:
                if self._app is None:
                    self._app = await asyncio.to_thread(self._make)
        await self._app(scope, receive, send)
