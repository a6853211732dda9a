"""Gateways and commands as forks of one process that has imported them: each would need 1.5 s of CPU for that.

A fork runs `millrace` with its own arguments, environment, folder and session, as a new process does.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import typer.main

# Imported for the forks.
import gateway.app as _app  # noqa: F401
from gateway.cli.main import app
from tests import templates
from tests.spared_work import share_commands

share_commands()
typer.main.get_command(app)
# Else each fork's collector would look at, and so copy, all that was imported.
gc.freeze()

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


class ForkedCommand:
    """A running `millrace` command, with the methods of `subprocess.Popen` that tests use; its output is text."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        out, child_out = _forks.Pipe(duplex=False)
        err, child_err = _forks.Pipe(duplex=False)
        self._process = _forks.Process(
            target=_run, args=(words, environment, str(Path.cwd()), child_out, child_err), daemon=False
        )
        self._process.start()
        child_out.close()
        child_err.close()
        self.stdout: IO[str] = _text(out)
        self.stderr: IO[str] = _text(err)
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("millrace", timeout_s or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _text(reader: Connection) -> IO[str]:
    with reader:
        return os.fdopen(os.dup(reader.fileno()), "r", encoding="utf-8", errors="replace")


def _run(words: list[str], environment: dict[str, str], folder: str, out: Connection, err: Connection) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for connection, number in ((out, 1), (err, 2)):
        with connection:
            os.dup2(connection.fileno(), number)
    if templates.FOLDER in environment:
        templates.use_templates()
    sys.argv = ["millrace", *words]
    app(prog_name="millrace")
