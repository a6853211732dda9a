"""The worker's process: its socket and signals, and the end of its life when the gateway goes or SIGTERM comes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from gateway.cloud_worker import adapters
from gateway.cloud_worker.app import CloudApp
from gateway.cloud_worker.logbook import note
from gateway.cloud_worker.providers import Orders

ADAPTER_THREADS = 8
KEEP_ALIVE_S = 60


def serve(orders: Orders) -> None:
    """Serve until told to stop; returns when every answer is out or its time is up."""
    asyncio.run(_serve(orders))


class _Server(uvicorn.Server):
    """uvicorn, with our signals and a line on stdout once it answers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal once more after a clean exit, and so die of it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        app = self.config.app
        assert isinstance(app, CloudApp)
        sys.stdout.buffer.write(msgspec.json.encode(app.health()) + b"\n")
        sys.stdout.buffer.flush()
        _silence_stdout()

    def drain(self) -> None:
        self.should_exit = True

    def leave(self) -> None:
        """Nobody is left to read an answer."""
        self.should_exit = self.force_exit = True


async def _serve(orders: Orders) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(ADAPTER_THREADS, thread_name_prefix="adapter"))
    loop.set_exception_handler(_note_stray_error)
    server = _Server(_uvicorn_config(orders))
    loop.add_signal_handler(signal.SIGTERM, server.drain)
    loop.add_signal_handler(signal.SIGINT, server.drain)
    parent_watch = asyncio.create_task(_leave_with_parent(server))
    await adapters.warm_up(orders.configuration.models.values())
    with _listener(orders.socket_path) as listener:
        await server.serve([listener])
    parent_watch.cancel()


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)
    return listener


def _uvicorn_config(orders: Orders) -> uvicorn.Config:
    return uvicorn.Config(
        CloudApp(orders.configuration),
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(round(orders.configuration.limits.drain_s), 1),
    )


async def _leave_with_parent(server: _Server) -> None:
    """The gateway holds the other end of our stdin for as long as it lives."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass
    note("gateway_gone")
    server.leave()


def _silence_stdout() -> None:
    """litellm prints now and then; nobody reads our stdout after its first line."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _note_stray_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would print messages that may hold parts of a prompt."""
    error = context.get("exception")
    note("stray_error", error=type(error).__name__ if error else str(context.get("message"))[:80])
