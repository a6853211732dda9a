"""Snippets as forks of one process that has imported what most need: each would take 1 s of CPU for that.

Started as a program it reads a line of JSON for each snippet and answers with its exit code, null after the timeout.
"""

import gc
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]


class SnippetProcess:
    """Starts with the first snippet; `close` ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, snippet: str, environment: dict[str, str], folder: Path, timeout_s: float
    ) -> tuple[int | None, str, str]:
        """Run it as a program in `folder`. Return its exit code (None after the timeout), stdout and stderr."""
        if self._process is None:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([snippet, environment, str(folder), timeout_s]) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        return code, (folder / "stdout").read_text(), (folder / "stderr").read_text()

    def close(self) -> None:
        if self._process:
            self._process.communicate()


def serve() -> None:
    # What several forks need; a client of one snippet alone is imported by its fork. openai imports its resources
    # with the first request.
    import llm.cli  # noqa: F401
    import openai.resources  # noqa: F401

    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        snippet, environment, folder, timeout_s = json.loads(line)
        pid = os.fork()
        if not pid:
            _run(snippet, environment, folder)
        sys.stdout.write(json.dumps(_exit_code(pid, timeout_s)) + "\n")
        sys.stdout.flush()


def _exit_code(pid: int, timeout_s: float) -> int | None:
    until_s = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until_s:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.02)


def _run(snippet: str, environment: dict[str, str], folder: str) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(name).open("w") as file:
            os.dup2(file.fileno(), number)
    code: Any = 0
    try:
        exec(compile(snippet, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  the program's edge
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
