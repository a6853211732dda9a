"""Child processes: how this process starts, asks and ends them, and how they end with it.

Each child reads its stdin, and the parent holds the other end. The kernel closes it however the parent ends, so
that no such child outlives its parent, not even after `kill -9`.
"""

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from runtime.interpreter import command_of, environment

ORDERS_S = 30.0
ORDERS_BYTES_MAX = 4 * 1024 * 1024
KILLED_WITHIN_S = 5.0
_TOOL_S = 5.0
_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_READ_BYTES = 64 * 1024


async def start(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: int = PIPE,
    stderr: int | None = None,
) -> Process:
    """Start a child with a pipe as stdin. Its environment is `environment()` if there is no `env`. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=environment() if env is None else env,
        # A terminal's Ctrl-C reaches only the parent, which finishes its work before it ends its children.
        start_new_session=True,
    )


async def lines_of(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    """Yield a child's output lines until it closes the pipe. Of a line above 64 KiB at most the end is yielded."""
    assert stream
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            # The line is longer than the reader's limit, and the reader has discarded what came of it.
            continue
        if not line:
            return
        yield line


def kill(process: Process) -> None:
    """Kill a child unless it has ended."""
    with suppress(ProcessLookupError):
        process.kill()


async def reap(process: Process, patience_s: float = 0.0) -> bool:
    """Kill a child that does not end within the patience. Return whether it ended by itself."""
    if process.returncode is not None:
        return True
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_WITHIN_S):
                await process.wait()
        return False
    return True


async def end(process: Process, patience_s: float) -> bool:
    """Close a child's stdin, which asks it to end, and `reap` it."""
    assert process.stdin
    process.stdin.close()
    return await reap(process, patience_s)


async def answer_of(module: str, question: bytes, timeout_s: float) -> tuple[bytes, int]:
    """Ask a child one question on its stdin. Return its last output line and its exit status.

    Code that the child runs may print other lines before. Raises TimeoutError or OSError.
    """
    process = await start(*command_of(module))
    assert process.stdin
    assert process.stdout
    try:
        async with asyncio.timeout(timeout_s):
            with suppress(ConnectionError):  # The exit status shows why it ended before it got the question.
                process.stdin.write(question + b"\n")
                await process.stdin.drain()
            tail = b""
            while chunk := await process.stdout.read(_READ_BYTES):
                tail = (tail + chunk)[-_ANSWER_BYTES_MAX:]
            return tail.strip().rpartition(b"\n")[2], await process.wait()
    finally:
        await reap(process)


def output_of(program: str | None, *arguments: str) -> str:
    """Return what a tool of the system prints within 5 s; empty if there is no such tool, or if it fails."""
    if program is None:
        return ""
    command = [program, *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=True, text=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""


def read_orders() -> bytes:
    """Return the first line of stdin, in the child.

    It is read unbuffered, so that `leave_with_parent` sees what follows. Raises ValueError or TimeoutError.
    """
    deadline, line = time.monotonic() + ORDERS_S, b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([0], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            raise TimeoutError(f"no orders within {ORDERS_S:g} s")
        part = os.read(0, 65_536)
        line += part
        if not part or len(line) > ORDERS_BYTES_MAX:
            raise ValueError("orders end without a line feed" if not part else "orders are too long")
    return line


def leave_with_parent(leave: Callable[[], object]) -> None:
    """Call `leave` in a thread, in the child, once stdin closes: the parent is gone or ends this child."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # Its event loop is closed: the child is ending anyway.
            leave()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def read_question() -> bytes:
    """Return the question of `answer_of`, in the child. Exit if the parent is gone by then or later."""
    try:
        question = read_orders()
    except (ValueError, TimeoutError):
        sys.exit(1)
    leave_with_parent(lambda: os._exit(1))
    return question
