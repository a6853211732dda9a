"""Manage processes that a demo starts, and that end with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

STOP_TIMEOUT_S = 60.0
ENDING = (signal.SIGTERM, signal.SIGHUP)


def end_on_signals() -> None:
    """Turn signals into an exception, so that processes are stopped and folders removed."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    # `timeout` and `make` may send a signal twice. Ignore the second one: stopping has its own limit.
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> "Iterator[subprocess.Popen[str]]":
    """Run a process. Stop it with SIGTERM at the end, or kill it with its session if that fails."""
    with ExitStack() as stack:
        with _signals_later():
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.PIPE,  # some end when their stdin closes
                stdout=subprocess.PIPE,
                env=os.environ | environment,
                start_new_session=True,
                text=True,
            )
            stack.callback(_stop, process)
        yield process


def first_line(process: "subprocess.Popen[str]", name: str) -> str:
    """Return the first line, which a process prints when it is ready. End the demo if there is none."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{name} did not start (exit status {process.wait()})")
    return line


@contextmanager
def _signals_later() -> Iterator[None]:
    """Postpone signals: one between a process's start and its registration would leave it running."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda had, _: came.append(had)) for number in (*ENDING, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    finally:
        if process.poll() is None:
            # Its nodes are in their own sessions, and end with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
