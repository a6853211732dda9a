"""Child processes of the product as forks of a process that has imported their libraries.

Importing torch takes 2 s of CPU and litellm 4 s; a run of all tests starts a hundred such children. A fork runs the
same module with the same arguments, environment, folder and pipes. Its parent is the template, not the process that
asked for it: `children_of` finds both kinds. A test that starts `python -m gateway` anew gets real children.
The processes of chat templates are forks, too: tests/cluster/test_chat_templates.py starts real ones.
"""

import asyncio
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from cluster.models import template_process

FOLDER = "TEST_TEMPLATES"
"""Names the variable with the folder of sockets; without it children are started as everywhere else."""
_ROOT = Path(__file__).parents[1]
_TEMPLATES: dict[str, tuple[str, ...]] = {
    "torch": (
        "cluster.engine.stage_process",
        "cluster.engine.embedder_process",
        "cluster.engine.coordinator_process",
        "cluster.nodes.node_process",
        "tests.fakes.lying_stage",
    ),
    "litellm": ("gateway.lanes.cloud.worker", "tests.gateway.lanes.litellm_logprobs"),
    "gateway": ("gateway.billing.verify_process", "gateway.migration_process", "market.buyer"),
    "renderer": ("cluster.models.template_renderer",),
}
"""By template: the modules that run as its forks."""
_IMPORTED = {
    "gateway.billing.verify_process": (
        "gateway.billing.verify_process",
        "runtime.postgresql",
        "sqlalchemy.dialects.postgresql.psycopg",
        "psycopg",
    ),
    "gateway.lanes.cloud.worker": ("gateway.lanes.cloud.worker.server",),
    "market.buyer": ("market.buyer.server",),
    "tests.fakes.lying_stage": ("cluster.engine.pipeline_links",),
    "gateway.migration_process": ("gateway.migration_process", "gateway.database", "gateway.schema_upgrade"),
}
"""What a module imports late, or what to import in place of a package that runs when it is imported."""
_START_S = 120.0
_OUTPUT_S = 1.0
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")
_PEER = struct.Struct("3i")

_start_really = asyncio.create_subprocess_exec


@dataclass(frozen=True, slots=True)
class Request:
    """A child to start: everything that `python -m MODULE` would get."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    has_own_session: bool


def use_templates() -> None:
    """Start children of this process, and of its children, from templates that end with this process."""
    if FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="test-templates-")
        (Path(folder) / "owner").write_text(str(os.getpid()))
        os.environ[FOLDER] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    asyncio.create_subprocess_exec = _start  # type: ignore[assignment]
    template_process.Popen = _start_renderer  # type: ignore[assignment,attr-defined]


def children_of(process: psutil.Process, module: str = "") -> list[psutil.Process]:
    """Return the children that a process started, from templates or not; of one module if it is named."""
    found = [child for child in process.children() if module in ("", *_cmdline(child))]
    with contextlib.suppress(OSError, KeyError):
        for line in (Path(os.environ[FOLDER]) / f"children-{process.pid}").read_text().splitlines():
            pid, started_s, name = line.split()
            with contextlib.suppress(psutil.NoSuchProcess):
                child = psutil.Process(int(pid))
                if module in ("", name) and child.create_time() == float(started_s):
                    found.append(child)
    return found


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and everything that it and its children started."""
    return [process, *(each for child in children_of(process) for each in family_of(child))]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# ---------------------------------------------------------------- the side that asks


class ForkedProcess:
    """A fork of a template, with the parts of `asyncio.subprocess.Process` that the product uses."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._connection = connection
        self._has_ended = asyncio.Event()
        self._outputs: list[tuple[asyncio.BaseTransport, asyncio.StreamReaderProtocol]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._end)

    async def open_pipes(self, ends: dict[int, int], limit: int) -> None:
        """Make streams of our ends of the child's pipes, by the number that the child's end has."""
        for number, fd in ends.items():
            reader = asyncio.StreamReader(limit=limit)
            protocol = asyncio.StreamReaderProtocol(reader)
            if number:
                output, _ = await self._loop.connect_read_pipe(_always(protocol), os.fdopen(fd, "rb", 0))
                self._outputs.append((output, protocol))
                setattr(self, "stdout" if number == 1 else "stderr", reader)
            else:
                transport, _ = await self._loop.connect_write_pipe(_always(protocol), os.fdopen(fd, "wb", 0))
                self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)

    async def wait(self) -> int:
        """Return the status once the child has ended and its output was taken in; a full buffer is not waited for."""
        await self._has_ended.wait()
        assert self.returncode is not None
        if self._outputs:
            # `_closed` is the future that asyncio's own processes wait for.
            taken_in = [protocol._closed for _, protocol in self._outputs]  # type: ignore[attr-defined]
            await asyncio.wait(taken_in, timeout=_OUTPUT_S)
        for output, _ in self._outputs:
            output.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self._loop.remove_reader(self._connection)
        status = self._connection.recv(_STATUS.size)
        self._connection.close()
        self.returncode = _STATUS.unpack(status)[0] if status else -signal.SIGKILL
        self._has_ended.set()
        if self.stdin:
            self.stdin.close()


class _BlockingFork:
    """A fork of a template, whose owner waits as for a `subprocess.Popen`."""

    def __init__(self, request: Request, options: dict[str, Any]) -> None:
        name = next(name for name, modules in _TEMPLATES.items() if request.module in modules)
        _begin(name)
        self.pid, self._connection, self._ends = _fork(name, request, options)
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            try:
                status = self._connection.recv(_STATUS.size)
            except TimeoutError:
                raise subprocess.TimeoutExpired("python", timeout_s or 0.0) from None
            self._connection.close()
            self.returncode = _STATUS.unpack(status)[0] if status else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedRenderer(_BlockingFork):
    """A chat template's process: a fork that has its socket as standard input, which the real one does not use."""

    def __init__(self, module: str, environment: dict[str, str], socket_fd: int) -> None:
        request = Request(module, ["0"], environment, str(Path.cwd()), has_own_session=True)
        options = {"stdin": socket_fd, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        super().__init__(request, options)


class ForkedChild(_BlockingFork):
    """A fork of a template, with the parts of `subprocess.Popen` that tests use; stdin and stdout are pipes."""

    def __init__(self, module: str, environment: dict[str, str], folder: str, stderr: int) -> None:
        """Start `python -m MODULE`, which must be a module of a template."""
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        super().__init__(Request(module, [], environment, folder, has_own_session=False), options)
        self.stdin: IO[bytes] = os.fdopen(self._ends[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(self._ends[1], "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


async def _start(program: str, *words: str, **options: Any) -> Any:
    """Do what `asyncio.create_subprocess_exec` does, from a template if there is one of the module."""
    name, module, arguments = _template_of(program, words)
    if not name or not os.environ.get(FOLDER):
        return await _start_really(program, *words, **options)
    request = Request(
        module,
        arguments,
        dict(options.get("env") or os.environ),
        str(options.get("cwd") or Path.cwd()),
        bool(options.get("start_new_session")),
    )
    if not _socket_of(name).exists():
        await asyncio.to_thread(_begin, name)
    pid, connection, ours = _fork(name, request, options)
    process = ForkedProcess(pid, connection)
    try:
        await process.open_pipes(ours, options.get("limit", 2**16))
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process


def _start_renderer(command: list[str], **options: Any) -> Any:
    """Do what `subprocess.Popen` does for a chat template's process, from a template if there is a folder of them."""
    if not os.environ.get(FOLDER):
        return subprocess.Popen(command, **options)
    return ForkedRenderer(command[command.index("-m") + 1], options["env"], options["pass_fds"][0])


def _fork(name: str, request: Request, options: dict[str, Any]) -> tuple[int, socket.socket, dict[int, int]]:
    """Return the child's process id, the connection that tells of its end, and our ends of its pipes."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(_socket_of(name)))
    theirs, ours = _ends(options)
    try:
        pid = _ask(connection, request, theirs)
    finally:
        for fd in theirs:
            os.close(fd)
    return pid, connection, ours


def _always(protocol: asyncio.StreamReaderProtocol) -> Callable[[], asyncio.StreamReaderProtocol]:
    return lambda: protocol


def _template_of(program: str, words: tuple[str, ...]) -> tuple[str, str, list[str]]:
    """Return the template, the module and its arguments; empty if a child is none of a template's."""
    if program == sys.executable and "-m" in words:
        at = words.index("-m") + 1
        for name, modules in _TEMPLATES.items():
            if words[at] in modules:
                return name, words[at], list(words[at + 1 :])
    return "", "", []


def _ends(options: dict[str, Any]) -> tuple[list[int], dict[int, int]]:
    """Return the three standard streams for the child, and our ends of those that are pipes."""
    theirs: list[int] = []
    ours: dict[int, int] = {}
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        kind = options.get(name)
        if kind == subprocess.PIPE:
            read, write = os.pipe()
            theirs.append(read if number == 0 else write)
            ours[number] = write if number == 0 else read
        elif kind == subprocess.DEVNULL:
            theirs.append(os.open(os.devnull, os.O_RDWR))
        else:
            theirs.append(os.dup(number if kind is None else kind if isinstance(kind, int) else kind.fileno()))
    return theirs, ours


def _socket_of(name: str) -> Path:
    return Path(os.environ[FOLDER]) / f"{name}.socket"


def _begin(name: str) -> None:
    """Start a template, unless it runs, and return once it serves."""
    socket_path = _socket_of(name)
    with socket_path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not socket_path.exists():
            command = [sys.executable, "-P", "-m", "tests.templates", name, str(socket_path.parent)]
            # Not all of ours: it must not matter which test asks first.
            kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
            environment = kept | {"PYTHONPATH": str(_ROOT)}
            subprocess.run(command, env=environment, cwd=_ROOT, timeout=_START_S, check=True)


def _ask(connection: socket.socket, request: Request, streams: list[int]) -> int:
    content = json.dumps([getattr(request, name) for name in Request.__slots__]).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], streams)
    connection.sendall(content)
    return int(_LENGTH.unpack(_exactly(connection, _LENGTH.size))[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError("the other side has ended")
        content += part
    return bytes(content)


# ---------------------------------------------------------------- the template


def _serve(name: str, folder: Path, is_serving: int) -> Request | None:
    """Fork until the owner ends. Return None in the template at its end, and the request in each fork."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / f"{name}.new"))
        listener.listen(64)
        (folder / f"{name}.new").rename(folder / f"{name}.socket")
        owner = os.pidfd_open(int((folder / "owner").read_text()))
        stack.callback(os.close, owner)
        os.close(is_serving)
        woken, wake = socket.socketpair()
        selector = stack.enter_context(selectors.DefaultSelector())
        for source in (listener, woken, owner):
            selector.register(source, selectors.EVENT_READ)
        for each in (woken, wake):
            stack.enter_context(each).setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        running: dict[int, socket.socket] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj == owner:
                    return None
                if key.fileobj is woken:
                    woken.recv(4096)
                    _reap(running)
                    continue
                if not (asked := _take_request(listener)):
                    continue
                connection, request, streams = asked
                pid = os.fork()
                if not pid:
                    _take_place(request, streams, [connection, *running.values()])
                    return request
                for fd in streams:
                    os.close(fd)
                running[pid] = connection
                asker, _, _ = _PEER.unpack(
                    connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                )
                with (folder / f"children-{asker}").open("a") as children:
                    children.write(f"{pid} {psutil.Process(pid).create_time()} {request.module}\n")
                with contextlib.suppress(OSError):
                    connection.sendall(_LENGTH.pack(pid))


def _take_request(listener: socket.socket) -> tuple[socket.socket, Request, list[int]] | None:
    """Return the next connection, its request and the child's streams; None if the asker was killed meanwhile."""
    connection, _ = listener.accept()
    streams: list[int] = []
    try:
        length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        request = Request(*json.loads(_exactly(connection, _LENGTH.unpack(length)[0])))
    except (OSError, struct.error):
        for end in (*streams, connection.detach()):
            os.close(end)
        return None
    return connection, request, streams


def _reap(running: dict[int, socket.socket]) -> None:
    """Tell of every fork that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as connection, contextlib.suppress(OSError):
                connection.sendall(_STATUS.pack(os.waitstatus_to_exitcode(ended[1])))


def _take_place(request: Request, streams: list[int], connections: list[socket.socket]) -> None:
    """Give this fork the streams, folder, environment and session of the child that was asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for connection in connections:
        connection.close()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    if request.has_own_session:
        os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)


def main(name: str, folder: str) -> None:
    """Import what a template's modules need, and serve in a process without a parent."""
    for module in _TEMPLATES[name]:
        for needed in _IMPORTED.get(module, (module,)):
            importlib.import_module(needed)
            if needed == module:
                del sys.modules[needed]  # It runs as `__main__` in each fork.
    gc.collect()
    gc.freeze()
    serving, is_serving = os.pipe()
    if os.fork():
        os.close(is_serving)
        os.read(serving, 1)
        os._exit(0)
    os.close(serving)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    request = _serve(name, Path(folder), is_serving)
    if request:
        if os.environ.get(FOLDER):
            use_templates()
        sys.argv = [request.module, *request.arguments]
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
