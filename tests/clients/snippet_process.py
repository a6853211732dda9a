"""Processes that run a snippet each: forks of one that has imported the clients, which takes seconds of CPU."""

import multiprocessing
import os
from pathlib import Path

# Imported for the forks. They import litellm and langchain by themselves.
import anthropic as anthropic
import httpx as httpx
import ollama as ollama
import openai as openai

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


def run_snippet(
    snippet: str, environment: dict[str, str], folder: Path, timeout_s: float
) -> tuple[int | None, str, str]:
    """Run it as a program in `folder`. Return its exit code (None after the timeout), stdout and stderr."""
    process = _forks.Process(target=_run, args=(snippet, environment, folder))
    process.start()
    process.join(timeout_s)
    code = process.exitcode
    process.kill()
    process.join()
    return code, (folder / "stdout").read_text(), (folder / "stderr").read_text()


def _run(snippet: str, environment: dict[str, str], folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), number)
    exec(compile(snippet, "<string>", "exec"), {"__name__": "__main__"})
