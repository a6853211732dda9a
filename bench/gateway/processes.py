"""Run processes under measurement: start them on their cores, read CPU time and memory, end them with their
children.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A program and all that it started, which are one session."""

    process: subprocess.Popen[bytes]

    @property
    def pids(self) -> list[int]:
        return [pid for pid in _all_pids() if _session(pid) == self.process.pid]

    @property
    def cpu_s(self) -> float:
        """User and system time of all of them, to the nanosecond, including threads that have ended."""
        return sum(_cpu_s(pid) for pid in self.pids)

    @property
    def own_cpu_s(self) -> float:
        """The same for the program alone, without what it started."""
        return _cpu_s(self.process.pid)

    @property
    def rss_mb(self) -> float:
        return sum(_rss_mb(pid) for pid in self.pids)

    @contextlib.contextmanager
    def before_others(self) -> Generator[None]:
        """Run all its threads before other work of the machine within this context (root).

        Among themselves they wait for each other for up to 100 ms, so do not use it for work that keeps the core
        busy.
        """
        self._schedule(os.SCHED_RR, 1)
        try:
            yield
        finally:
            self._schedule(os.SCHED_OTHER, 0)

    def _schedule(self, policy: int, priority: int) -> None:
        for pid in self.pids:
            for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))

    def stop(self) -> None:
        for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if self._is_gone(patience_s):
                return

    def _is_gone(self, patience_s: float) -> bool:
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            self.process.poll()
            if not self.pids:
                return True
            time.sleep(0.05)
        return False


def place(
    command: Sequence[str],
    cores: Iterable[int],
    *,
    realtime: bool = False,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    output: IO[bytes] | int = subprocess.DEVNULL,
    errors: IO[bytes] | int | None = subprocess.DEVNULL,
) -> Placed:
    """Start a program in its own session, on those cores alone. `realtime` runs it before all others (root)."""
    urgent = ["chrt", "--rr", "1"] if realtime else []
    wrapped = ["taskset", "-c", ",".join(map(str, cores)), *urgent, *command]
    process = subprocess.Popen(
        wrapped,
        cwd=folder,
        env=os.environ | (environment or {}),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    return Placed(process)


def pace_ms(core: int) -> float:
    """Return how long the core takes for a fixed loop now: the machine's speed between measurements."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    began_s, total = time.thread_time(), 0
    for number in range(100_000):
        total += number * number % 7
    took_s = time.thread_time() - began_s
    os.sched_setaffinity(0, before)
    return took_s * 1e3


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid) if _is_alive(pid) else 0
    except ProcessLookupError:
        return 0


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _cpu_s(pid: int) -> float:
    # On Linux this is the clock id of another process's CPU time (clock_getcpuclockid(3)).
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _rss_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB
    except OSError:
        return 0.0
