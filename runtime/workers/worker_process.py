"""One worker process of the gateway: started in its own folder and session, monitored, and stopped.

It runs a `Program`, such as the cloud worker's or the market buyer's.
"""

import asyncio
import errno
import os
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import orjson
import psutil
import structlog

from runtime import children
from runtime.workers.health import Health

log = structlog.get_logger(__name__)

END_S = 5.0
ABANDONED_AFTER_S = 3600.0
_SOCKET_NAME = "s"
SOCKET_PATH_CHARS_MAX = 100
"""The kernel takes 107 on Linux and 103 on macOS."""
PASSED_ON = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""All that the worker gets of our environment: no settings, no secrets, not even the real home with its .netrc."""


class WorkerFailed(Exception):
    """The process did not come up."""


@dataclass(frozen=True)
class Program:
    """The module to run with `python -m`, and its configuration: one line of JSON on stdin, by socket path.

    It prints `Health` on stdout once it serves, answers `GET /healthz` with it, and exits when its stdin closes.
    """

    name: str
    module: str
    orders: Callable[[str], bytes]
    drain_s: float

    @property
    def folder_prefix(self) -> str:
        return f"millrace-{self.name.partition('_')[0]}-"


@dataclass(eq=False)
class WorkerProcess:
    """A worker that has reported it is ready; `leases` counts the requests that use its socket."""

    generation: int
    socket_path: Path
    born: Health
    _process: Process
    _drain_s: float
    _log_relay: asyncio.Task[None]
    leases: int = 0
    _killed: bool = False
    started: float = field(default_factory=time.monotonic)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._killed

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        """Seen from outside, whether the process answers or not; 0 once it is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def take(self) -> None:
        self.leases += 1
        self.idle.clear()

    def give_back(self) -> None:
        self.leases -= 1
        if self.leases == 0:
            self.idle.set()

    async def exited(self) -> int:
        return await self._process.wait()

    async def health(self, timeout_s: float) -> Health | None:
        """The answer of GET /healthz, or None if it does not come in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await _fetch_health(self.socket_path)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError):
            return None

    def kill(self) -> None:
        self._killed = True
        children.kill(self._process)

    async def stop(self) -> None:
        """Let running answers finish within the drain time, then end the process whatever it does."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await children.reap(self._process, self._drain_s + END_S)
        self._log_relay.cancel()
        await asyncio.wait({self._log_relay}, timeout=END_S)
        shutil.rmtree(self.socket_path.parent, ignore_errors=True)


async def launch(program: Program, generation: int, start_s: float) -> WorkerProcess:
    """Start a worker and wait until it answers. Raises WorkerFailed, after removing process and folder."""
    folder, process, log_relay = None, None, None
    try:
        folder = _private_folder(program.folder_prefix)
        process = await _spawn(program.module, folder)
        log_relay = asyncio.create_task(_relay_log(process, program.name, generation))
        async with asyncio.timeout(start_s):
            born = await _give_orders(process, program.orders(str(folder / _SOCKET_NAME)))
    except BaseException as error:
        if process is not None:
            await children.reap(process)
        if log_relay is not None:
            log_relay.cancel()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, TimeoutError):
            raise WorkerFailed(f"{program.name} was not ready within {start_s:g} s") from None
        if isinstance(error, OSError | msgspec.MsgspecError | ValueError):
            raise WorkerFailed(f"{program.name} did not start: {type(error).__name__}") from error
        raise
    return WorkerProcess(generation, folder / _SOCKET_NAME, born, process, program.drain_s, log_relay)


async def _spawn(module: str, folder: Path) -> Process:
    # Neither the working folder nor PYTHON* variables decide what is imported.
    command = sys.executable, "-I", "-m", module
    return await children.start(*command, env=_scrubbed(os.environ, folder), cwd=folder, stderr=PIPE)


def _scrubbed(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    passed_on = {name: environment[name] for name in PASSED_ON if name in environment}
    return {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), **passed_on}


def _private_folder(prefix: str) -> Path:
    """A fresh folder that only we can enter (mkdtemp makes it 0700), with a name short enough for a socket."""
    folder = tempfile.mkdtemp(prefix=prefix)
    if len(folder) > SOCKET_PATH_CHARS_MAX:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    _remove_abandoned(Path(folder).parent, prefix)
    return Path(folder)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove folders of workers whose gateway was killed: own folders, not new, with no process at the socket."""
    for folder in parent.glob(prefix + "*"):
        with suppress(OSError):
            known = folder.lstat()
            is_ours = stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid()
            if (
                is_ours
                and time.time() - known.st_mtime > ABANDONED_AFTER_S
                and not _is_served(folder / _SOCKET_NAME)
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.setblocking(False)
        return attempt.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


async def _give_orders(process: Process, orders: bytes) -> Health:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(orders + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise ValueError("it ended before it was ready")
    return msgspec.json.decode(line, type=Health)


async def _relay_log(process: Process, name: str, generation: int) -> None:
    """Copy the worker's log lines into this log until the worker closes stderr."""
    async for line in children.lines_of(process.stderr):
        try:
            fields = orjson.loads(line)
            text = fields.pop("event")
        except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
            fields, text = {}, line.decode("utf-8", "replace").rstrip()[:500]
        log.info("worker.said", worker=name, **fields | {"said": text, "generation": generation})


async def _fetch_health(socket_path: Path) -> Health:
    return msgspec.json.decode(await ask_worker(socket_path, "/healthz", 100_000), type=Health)


async def ask_worker(socket_path: Path, target: str, bytes_max: int, method: str = "GET") -> bytes:
    """The body of a worker's answer. Raises OSError, EOFError. The caller sets the time limit."""
    reader, writer = await asyncio.open_unix_connection(str(socket_path))
    try:
        request = b"%b %b HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        writer.write(request % (method.encode(), target.encode()))
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d{1,9})\r\n", head)
        if not head.startswith(b"HTTP/1.1 200") or length is None or int(length[1]) > bytes_max:
            raise OSError("the worker is not well")
        return await reader.readexactly(int(length[1]))
    finally:
        writer.close()
