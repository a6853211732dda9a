"""The HTTP server under every fake provider: real sockets, a thread of its own, and a record of what came.

`GET /control/requests` lists what was received and what became of it, `POST /control/reset` forgets it: for
tests whose fake runs in another process. Tests in the same process read `server.requests`.
"""

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from aiohttp import web

Outcome = Literal["open", "answered", "cancelled", "broken"]
Handler = Callable[[web.Request, "Received"], Awaitable[web.StreamResponse]]

STEP_TIMEOUT_S = 60.0
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Received:
    """One request as it came over the wire, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    """The client's port: equal numbers mean that a connection was used again."""
    outcome: Outcome = "open"


@dataclass
class ProviderServer:
    """Serves `routes` (path -> handler of a POST) on 127.0.0.1 from a thread of its own until `stop`.

    `models` are what GET /v1/models lists.
    """

    routes: dict[str, Handler]
    port: int = 0
    models: tuple[str, ...] = ()
    requests: list[Received] = field(default_factory=list)

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(STEP_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(STEP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STEP_TIMEOUT_S)
        self._loop.close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def last(self, model: str) -> Received:
        """The newest request for this model."""
        return next(received for received in reversed(self.requests) if received.body.get("model") == model)

    def wait_until(self, model: str, outcome: Outcome, timeout_s: float = STEP_TIMEOUT_S) -> Received:
        """Wait for the newest request for this model to end so, or fail with what it came to instead."""
        deadline = time.monotonic() + timeout_s
        seen: Outcome | None = None
        while time.monotonic() < deadline:
            if any(received.body.get("model") == model for received in self.requests):
                seen = self.last(model).outcome
                if seen == outcome:
                    return self.last(model)
            time.sleep(0.01)
        raise AssertionError(f"the request for {model} is {seen or 'not there'} instead of {outcome}")

    async def _listen(self) -> None:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        for path, handler in self.routes.items():
            app.router.add_post(path, self._recorded(handler))
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/control/requests", self._show)
        app.router.add_post("/control/reset", self._forget)
        # Without handler_cancellation a client that hangs up would not be noticed before the next write.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def _recorded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def record(request: web.Request) -> web.StreamResponse:
            port = request.transport.get_extra_info("peername")[1] if request.transport else 0
            headers = {name.lower(): value for name, value in request.headers.items()}
            # A form is left for its handler to read, which can be done only once.
            body = json.loads(await request.read()) if request.content_type == "application/json" else {}
            received = Received(request.path, headers, body, port)
            self.requests.append(received)
            try:
                response = await handler(request, received)
            except (asyncio.CancelledError, ConnectionResetError):
                if received.outcome == "open":
                    received.outcome = "cancelled"
                raise
            if received.outcome == "open":
                received.outcome = "answered"
            return response

        return record

    async def _list(self, request: web.Request) -> web.Response:
        entries = [{"id": model, "object": "model", "created": 1, "owned_by": "fake"} for model in self.models]
        return web.json_response({"object": "list", "data": entries})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(received) for received in self.requests])

    async def _forget(self, request: web.Request) -> web.Response:
        self.requests.clear()
        return web.json_response({})


@contextmanager
def running(server: ProviderServer) -> Iterator[ProviderServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def serve_from_command_line(make: Callable[[int], ProviderServer]) -> None:
    """`python -m tests.fakes.… --port 0`: print the address as one JSON line and serve until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    with running(make(parser.parse_args().port)) as server:
        print(json.dumps({"origin": server.origin}), flush=True)  # noqa: T201  # the address is this program's output
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return
