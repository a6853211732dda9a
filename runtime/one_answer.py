"""A child process that answers one question and exits: a line of JSON on its stdin, and its last line on stdout."""

import os
import sys
import threading
from asyncio.subprocess import Process
from contextlib import suppress

_ANSWER_BYTES_MAX = 4 * 1024 * 1024
_READ_BYTES = 64 * 1024


async def ask(process: Process, question: bytes) -> bytes:
    """Return the child's last output line, because code that it runs may print other lines.

    Its stdin stays open until it has ended. The caller limits the time.
    """
    assert process.stdin
    assert process.stdout
    with suppress(ConnectionError):  # The exit status shows why it ended before it got the question.
        process.stdin.write(question + b"\n")
        await process.stdin.drain()
    tail = b""
    while chunk := await process.stdout.read(_READ_BYTES):
        tail = (tail + chunk)[-_ANSWER_BYTES_MAX:]
    await process.wait()
    return tail.strip().rpartition(b"\n")[2]


def read_question() -> bytes:
    """Return the question, in the child.

    Exit if stdin closes before all of the question is there, or later: the parent is gone.
    """
    if not (line := sys.stdin.buffer.readline()).endswith(b"\n"):
        sys.exit(1)
    threading.Thread(target=_exit_with_stdin, daemon=True).start()
    return line


def _exit_with_stdin() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)
