"""Run a worker process: orders on stdin, health on stdout, a socket, an end with its parent or SIGTERM."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.children import leave_with_parent, read_orders
from runtime.workers.health import Health
from runtime.workers.logbook import note

KEEP_ALIVE_S = 60
EXIT_BAD_ORDERS = 2

T = TypeVar("T")


class WorkerServer(uvicorn.Server):
    """uvicorn, with our signals and a line on stdout once it answers."""

    def __init__(
        self,
        app: Any,
        health: Callable[[], Health],
        drain_s: float,
        http: type[asyncio.Protocol] = HttpToolsProtocol,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=http,
                interface="asgi3",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(round(drain_s), 1),
            )
        )
        self._health = health

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal once more after a clean exit, and so die of it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.buffer.write(msgspec.json.encode(self._health()) + b"\n")
        sys.stdout.buffer.flush()
        _silence_stdout()

    async def serve_at(self, path: str) -> None:
        """Serve this socket until told to stop, or until the gateway closes its end of stdin."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_stray_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        leave_with_parent(lambda: loop.call_soon_threadsafe(self._leave))
        with _listener(path) as listener:
            await self.serve([listener])

    def _drain(self) -> None:
        self.should_exit = True

    def _leave(self) -> None:
        note("gateway_gone")
        self.should_exit = self.force_exit = True


def orders_of(shape: type[T]) -> T:
    """Return the orders of this shape, the first line of stdin. Exit if they cannot be read."""
    try:
        return msgspec.json.decode(read_orders(), type=shape)
    except (msgspec.MsgspecError, ValueError, TimeoutError) as error:
        note("bad_orders", error=str(error))
        sys.exit(EXIT_BAD_ORDERS)


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)
    return listener


def _silence_stdout() -> None:
    """Discard stdout: libraries print at times, and the gateway reads only the first line."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _note_stray_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would print messages that may hold parts of a prompt."""
    error = context.get("exception")
    note("stray_error", error=type(error).__name__ if error else str(context.get("message"))[:80])
