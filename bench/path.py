"""Count what an engineer reads to follow one paid, streamed completion from the socket to the ledger.

A file counts if one of its functions ran for the request, in any thread. Functions that also run while nothing is
asked do not count.
"""

import argparse
import asyncio
import io
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType

from gateway.billing.bookkeeper import Bookkeeper
from tests.gateway.requests.talkers import Talker, paid, stream

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = tuple(f"{ROOT}/{package}/" for package in ("accounting", "cluster", "gateway", "market", "runtime"))
_IDLE_S = 3.0
_CREDIT_NANO = 10**6
_TOKENS = 20
_CORE_PERCENT = 90


@dataclass(frozen=True, slots=True)
class PathFile:
    """A file of the path: its lines, and those of the functions that ran."""

    name: str
    lines: int
    lines_run: int


class _Tracer:
    """Notes the product's functions that run in any thread."""

    def __init__(self) -> None:
        self.ran: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGES):
            self.ran.add(frame.f_code)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench path", description=__doc__)
    parser.add_argument("--files", action="store_true", help="list every file")
    given = parser.parse_args(arguments)
    # The gateway writes its access log there.
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder, redirect_stderr(io.StringIO()):
        path = asyncio.run(follow(Path(folder)))
    if given.files:
        for file in path:
            print(f"{file.lines_run:5} of {file.lines:4} {file.name}")
    print("| folder | files | lines | lines of the functions that ran |\n|---|---|---|---|")
    for row in (*_by_folder(path), _row("all", path)):
        print(row)
    print(f"{len(core(path))} files have {_CORE_PERCENT} % of the lines that ran.")


def core(path: list[PathFile]) -> list[PathFile]:
    """Return the files with most of the lines that ran. The others have a helper or a property of the path."""
    ranked, lines_run = sorted(path, key=lambda file: -file.lines_run), sum(file.lines_run for file in path)
    sums = accumulate(file.lines_run for file in ranked)
    return [
        file
        for file, so_far in zip(ranked, sums, strict=True)
        if 100 * (so_far - file.lines_run) < _CORE_PERCENT * lines_run
    ]


async def follow(folder: Path) -> list[PathFile]:
    """Return the files of the second of two requests: the first one fills what is kept between requests."""
    tracer = _Tracer()
    threading.setprofile(tracer)  # for the ledger's threads, which the gateway starts
    try:
        async with paid(folder, Talker(_TOKENS, counted=_TOKENS), _CREDIT_NANO) as (running, _):
            sys.setprofile(tracer)
            await stream(running)
            await _booked(running.services.bookkeeper)
            tracer.ran.clear()
            await asyncio.sleep(_IDLE_S)
            idle = set(tracer.ran)
            tracer.ran.clear()
            await stream(running)
            await _booked(running.services.bookkeeper)
            ran = tracer.ran - idle
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(_files(ran))


async def _booked(bookkeeper: Bookkeeper) -> None:
    while bookkeeper.waiting:  # noqa: ASYNC110  the booking thread signals nothing
        await asyncio.sleep(0.01)


def _files(ran: set[CodeType]) -> Iterator[PathFile]:
    lines_of: dict[str, set[int]] = {}
    for code in ran:
        numbers = [number for _, _, number in code.co_lines() if number]
        lines_of.setdefault(code.co_filename, set()).update(range(min(numbers), max(numbers) + 1))
    for name, lines in sorted(lines_of.items()):
        yield PathFile(name.removeprefix(f"{ROOT}/"), len(Path(name).read_text().splitlines()), len(lines))


def _by_folder(path: list[PathFile]) -> Iterator[str]:
    folders = Counter("/".join(Path(file.name).parts[:2]) for file in path)
    for folder, _ in folders.most_common():
        yield _row(folder, [file for file in path if file.name.startswith(f"{folder}/") or file.name == folder])


def _row(name: str, files: list[PathFile]) -> str:
    lines, lines_run = sum(file.lines for file in files), sum(file.lines_run for file in files)
    return f"| {name} | {len(files)} | {lines:,} | {lines_run:,} |"
