"""Child processes of the product as forks of a process that has imported their libraries.

Importing torch takes 2 s of CPU and litellm 4 s; a run of all tests starts a hundred such children. A fork runs the
same module with the same arguments, environment, folder and pipes. Its parent is the template, not the process that
asked for it: `children_of` finds both kinds. The template's own side is `template_process`.
The processes of chat templates are forks, too: tests/cluster/test_chat_templates.py starts real ones.
"""

import asyncio
import atexit
import contextlib
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cluster.models import template_process

FOLDER = "TEST_TEMPLATES"
"""Names the variable with the folder of sockets; without it children are started as everywhere else."""
_ROOT = Path(__file__).parents[1]
TEMPLATES: dict[str, tuple[str, ...]] = {
    "torch": (
        "cluster.engine.stage_process",
        "cluster.engine.embedder_process",
        "cluster.engine.coordinator_process",
        "cluster.nodes.node_process",
        "tests.fakes.lying_stage",
    ),
    "litellm": ("gateway.lanes.cloud.worker", "tests.gateway.lanes.litellm_logprobs"),
    "gateway": ("gateway", "gateway.billing.verify_process", "gateway.migration_process", "market.buyer"),
    "renderer": ("cluster.models.template_renderer",),
    "workers": ("tests.forked_worker",),
}
"""By template: the modules that run as its forks."""
_START_S = 300.0
_OUTPUT_S = 1.0
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")

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
    os.environ[FOLDER] = str(_folder())
    asyncio.create_subprocess_exec = _start  # type: ignore[assignment]
    template_process.Popen = _start_renderer  # type: ignore[assignment,attr-defined]


def _folder() -> Path:
    """Return where the sockets are: for all processes of a run of tests, or for this process alone."""
    return Path(os.environ.get(FOLDER) or _own_folder())


@functools.cache
def _own_folder() -> str:
    folder = tempfile.mkdtemp(prefix="test-templates-")
    (Path(folder) / "owner").write_text(str(os.getpid()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def children_of(process: psutil.Process, module: str = "") -> list[psutil.Process]:
    """Return the children that a process started, from templates or not; of one module if it is named."""
    found = [child for child in process.children() if module in ("", *_cmdline(child))]
    with contextlib.suppress(OSError):
        for line in (_folder() / f"children-{process.pid}").read_text().splitlines():
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
        status = self._connection.recv(STATUS.size)
        self._connection.close()
        self.returncode = STATUS.unpack(status)[0] if status else -signal.SIGKILL
        self._has_ended.set()
        if self.stdin:
            self.stdin.close()


class ForkedChild:
    """A fork of a template, with the parts of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: dict[str, str],
        folder: Path,
        streams: Mapping[str, int],
        has_own_session: bool = False,
    ) -> None:
        """Start `python -m MODULE`, which must be a module of a template. `streams` are Popen's stdin and so on."""
        name = next(name for name, modules in TEMPLATES.items() if module in modules)
        begin(name)
        request = Request(module, list(arguments), environment, str(folder), has_own_session)
        self.pid, self._connection, self.pipes = _fork(name, request, streams)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired("python", timeout_s or 0.0)
            status = self._connection.recv(STATUS.size)
            self._connection.close()
            self.returncode = STATUS.unpack(status)[0] if status else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
        await asyncio.to_thread(begin, name)
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
    """Do what `subprocess.Popen` does for a chat template's process, from a template if there is a folder of them.

    The fork has its socket as standard input, which the real one does not use.
    """
    if not os.environ.get(FOLDER):
        return subprocess.Popen(command, **options)
    return ForkedChild(
        command[command.index("-m") + 1],
        ["0"],
        environment=options["env"],
        folder=Path.cwd(),
        streams={
            "stdin": options["pass_fds"][0],
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        },
        has_own_session=True,
    )


def _fork(name: str, request: Request, options: Mapping[str, Any]) -> tuple[int, socket.socket, dict[int, int]]:
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
        for name, modules in TEMPLATES.items():
            if words[at] in modules:
                return name, words[at], list(words[at + 1 :])
    return "", "", []


def _ends(options: Mapping[str, Any]) -> tuple[list[int], dict[int, int]]:
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
    return _folder() / f"{name}.socket"


def begin(name: str, *arguments: str) -> None:
    """Start a template, unless it runs, and return once it serves."""
    socket_path = _socket_of(name)
    with socket_path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not socket_path.exists():
            command = [
                sys.executable,
                "-P",
                "-m",
                "tests.template_process",
                name,
                str(socket_path.parent),
                *arguments,
            ]
            # Not all of ours: it must not matter which test asks first.
            kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
            environment = kept | {"PYTHONPATH": str(_ROOT)}
            subprocess.run(
                command, env=environment, cwd=_ROOT, timeout=_START_S, check=True, stdout=subprocess.DEVNULL
            )


def _ask(connection: socket.socket, request: Request, streams: list[int]) -> int:
    content = json.dumps([getattr(request, name) for name in Request.__slots__]).encode()
    socket.send_fds(connection, [LENGTH.pack(len(content))], streams)
    connection.sendall(content)
    return int(LENGTH.unpack(exactly(connection, LENGTH.size))[0])


def exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError("the other side has ended")
        content += part
    return bytes(content)
