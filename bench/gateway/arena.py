"""Run all contestants at once, each on the server core in turn, everything else on the other core."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.gateway.contestants import Contestant, Ground, Name, NotHere, prepare
from bench.gateway.load import Order, Saw
from bench.gateway.processes import Placed, pace_ms, place
from bench.gateway.upstream import MODEL

_READY_S = 180.0
_LOOK_AGAIN_S = 0.02
_LATE_S = 60.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Window:
    """One contestant under one load for a second or two."""

    saw: Saw
    cpu_s: float
    pace_ms: float

    @property
    def cpu_us(self) -> float:
        """CPU time per request, failed ones included."""
        return self.cpu_s / max(1, self.saw.requests) * 1e6

    @property
    def busy(self) -> float:
        """The share of the server core. Well below 1, the load was the limit."""
        return self.cpu_s / self.saw.seconds

    @property
    def per_s(self) -> float:
        return self.saw.answered / self.saw.seconds


@dataclass(frozen=True, slots=True)
class Start:
    """The cost of a start until the first answer, and the memory then."""

    wall_s: float
    cpu_s: float
    rss_mb: float


@dataclass(slots=True)
class Arena:
    """Made by `opened`. `realtime` runs what measures delay before other work of the machine (root)."""

    folder: Path
    programs: Path
    server_core: int
    load_core: int
    realtime: bool
    prompt_bytes: int
    upstream_port: int = 0
    _running: dict[Name, tuple[Contestant, Placed]] = field(default_factory=dict)
    _ending: ExitStack = field(default_factory=ExitStack)

    def start(self, name: Name) -> Start:
        """Start a contestant. Raises NotHere."""
        ground = Ground(self.upstream_port, free_port(), self.folder / name, self.programs)
        contestant = prepare(name, ground)
        if not contestant.command:
            self._running[name] = (contestant, self._running["direct"][1])
            return Start(0.0, 0.0, 0.0)
        with (ground.folder / "log").open("wb") as log:
            began_s = time.monotonic()
            placed = self._place(contestant.command, self.server_core, contestant.environment, log.fileno())
        _wait_ready(name, contestant, placed)
        start = Start(time.monotonic() - began_s, placed.cpu_s, placed.rss_mb)
        self._running[name] = (contestant, placed)
        return start

    def start_upstream(self) -> None:
        self.upstream_port = free_port()
        command = (sys.executable, "-m", "bench.gateway.upstream", str(self.upstream_port))
        placed = self._place(command, self.load_core, {}, subprocess.DEVNULL)
        contestant = prepare("direct", Ground(self.upstream_port, 0, self.folder / "direct", self.programs))
        _wait_ready("direct", contestant, placed)
        self._running["direct"] = (contestant, placed)

    def is_slow(self, name: Name) -> bool:
        return self._running[name][0].is_slow

    def rss_mb(self, name: Name) -> float:
        return self._running[name][1].rss_mb

    def measure(self, name: Name, order: Order, *, is_timed: bool = False) -> Window:
        """Measure one window. `is_timed` is for scenarios about delay, in which the core has spare time."""
        contestant, placed = self._running[name]
        addressed = msgspec.structs.replace(
            order, base_url=contestant.base_url, key=contestant.key, prompt_bytes=self.prompt_bytes
        )
        pace = pace_ms(self.server_core)
        before_s = placed.cpu_s
        with ExitStack() as urgent:
            if is_urgent := is_timed and self.realtime:
                urgent.enter_context(placed.before_others())
                urgent.enter_context(self._running["direct"][1].before_others())
            saw = self._load(addressed, realtime=is_urgent)
        used_s = placed.cpu_s - before_s
        return Window(saw, used_s, (pace + pace_ms(self.server_core)) / 2)

    def _load(self, order: Order, *, realtime: bool) -> Saw:
        command = (sys.executable, "-m", "bench.gateway.load")
        placed = place(
            command, [self.load_core], realtime=realtime, folder=_ROOT, output=subprocess.PIPE, errors=None
        )
        try:
            out, _ = placed.process.communicate(msgspec.json.encode(order), timeout=order.seconds + _LATE_S)
        finally:
            placed.stop()
        return msgspec.json.decode(out, type=Saw)

    def _place(self, command: tuple[str, ...], core: int, environment: dict[str, str], log: int) -> Placed:
        placed = place(
            command,
            [core],
            environment=environment,
            folder=_ROOT,
            output=log,
            errors=log,
        )
        self._ending.callback(placed.stop)
        return placed

    def close(self) -> None:
        self._ending.close()


@contextmanager
def opened(
    folder: Path, programs: Path, *, server_core: int, load_core: int, realtime: bool, prompt_bytes: int
) -> Generator[Arena]:
    """Yield an arena with a running upstream. End everything that was started in it on exit."""
    if not {server_core, load_core} <= os.sched_getaffinity(0):
        raise NotHere(f"cores {server_core} and {load_core} are required; see --server-core and --load-core")
    arena = Arena(folder, programs, server_core, load_core, realtime, prompt_bytes)
    try:
        arena.start_upstream()
        yield arena
    finally:
        arena.close()


def free_port() -> int:
    """Return a port whose next one is free too, because some contestants need a second one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
            return port


def _wait_ready(name: Name, contestant: Contestant, placed: Placed) -> None:
    """Wait for the first answer. Raises NotHere with the last response."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {contestant.key}"}
    request = urllib.request.Request(f"{contestant.base_url}/chat/completions", body, headers)
    # Do not use a proxy of the environment between two local processes.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until_s, heard = time.monotonic() + _READY_S, "nothing"
    while time.monotonic() < until_s and placed.process.poll() is None:
        try:
            with opener.open(request, timeout=10) as answer:
                if b"choices" in answer.read():
                    return
        except urllib.error.HTTPError as error:
            heard = f"{error.code} {error.read(200)!r}"
        except OSError as error:
            heard = str(error)
        time.sleep(_LOOK_AGAIN_S)
    raise NotHere(f"{name} did not start to answer: {heard}")
