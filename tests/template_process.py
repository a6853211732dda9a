"""The process that imports what children need, and forks each child that tests ask for; see `templates`."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.templates import FOLDER, LENGTH, STATUS, TEMPLATES, Request, exactly, use_templates

if TYPE_CHECKING:
    import torch

    from cluster.machine import Pace

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
_LATE = (
    "anyio._backends._asyncio",
    "certifi",
    "h2.connection",
    "httpcore",
    "stripe",
    "uvicorn.lifespan.on",
    "uvloop",
)
"""What libraries of the gateway import late."""
_GATEWAY = ("gateway", "market")
_NOT_GATEWAYS = ("gateway.lanes.cloud.worker", "gateway.__main__", "market.buyer.__main__")
"""What would import litellm, and what runs when it is imported."""
_PEER = struct.Struct("3i")


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
                    connection.sendall(LENGTH.pack(pid))


def _take_request(listener: socket.socket) -> tuple[socket.socket, Request, list[int]] | None:
    """Return the next connection, its request and the child's streams; None if the asker was killed meanwhile."""
    connection, _ = listener.accept()
    streams: list[int] = []
    try:
        length, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        request = Request(*json.loads(exactly(connection, LENGTH.unpack(length)[0])))
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
                connection.sendall(STATUS.pack(os.waitstatus_to_exitcode(ended[1])))


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


def _import_gateway() -> None:
    """Import all that any command may, and build the commands: 2 s of CPU in each gateway otherwise."""
    import typer.main

    from tests.spared_work import prepare_routes, share_commands, share_routes

    for package in map(importlib.import_module, _GATEWAY):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(_NOT_GATEWAYS):
                importlib.import_module(found.name)
    for name in _LATE:
        importlib.import_module(name)
    share_routes()
    prepare_routes()
    share_commands()
    command: Any = typer.main.get_command(importlib.import_module("gateway.cli.main").app)
    list(command.commands.values())  # Each is built when it is asked for.


def _share_pace(folder: Path) -> None:
    """Let the first stage measure the machine for all: 1.3 s of CPU in each stage that has it to itself otherwise."""
    from cluster.nodes import pace_probe

    probe = pace_probe.probe_pace

    def probe_once(device: "torch.device", threads: int, file: Path, *, is_shared: bool = False) -> "Pace":
        return probe(device, threads, folder / f"{threads}-{is_shared}-{file.name}", is_shared=is_shared)

    pace_probe.probe_pace = probe_once


def _collect_tests(paths: list[str], is_whole_run: bool) -> None:
    """Import all tests of a run as pytest does. A file that fails is imported again, and reported, by each worker."""
    import pytest  # With nothing of its plugins imported yet: it rewrites the assertions of what it imports itself.

    pytest.main([*paths, "--collect-only", "-qq", "-s", "-p", "no:cacheprovider"])
    if is_whole_run:
        from tests.warm_up import warm_up

        warm_up()
    gc.disable()  # As while the libraries were imported: what workers collect stays as well.


def _run(request: Request) -> None:
    """Run a fork's module, and end as the forks of multiprocessing do.

    To destroy all that the template has imported, which Python does at its end, takes 0.1 to 0.4 s of CPU.
    """
    code: int | None = 0
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]  # Waits for threads.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


def _prepare(name: str, folder: str, arguments: str) -> None:
    """Import what a template's modules need."""
    for module in TEMPLATES[name]:
        for needed in _IMPORTED.get(module, (module,)):
            importlib.import_module(needed)
            if needed == module:
                del sys.modules[needed]  # It runs as `__main__` in each fork.
    if name == "gateway":
        _import_gateway()
    if name == "torch":
        _share_pace(Path(folder))
    if name == "workers":
        _collect_tests(**json.loads(arguments))


def main(name: str, folder: str, arguments: str = "") -> None:
    """Import what a template's modules need, and serve in a process without a parent."""
    _prepare(name, folder, arguments)
    os.fsync = os.fstat  # type: ignore[assignment]  # As in `spared_work.leave_writes_to_the_system`.
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
        _run(request)
    os._exit(0)  # As the forks, and for the same reason.


if __name__ == "__main__":
    main(*sys.argv[1:])
