"""Measure what the gateway adds to a request and to an event, over the same load at its upstream (Linux).

With root, what is measured runs before all other work. Without it, nothing is said of the slowest percent.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.gateway.arena import Window, opened
from bench.gateway.contestants import Name, NotHere
from bench.gateway.rounds import CROWD, ONE, SOME, Results

ADDED = "p50 that the gateway adds to a request at one connection"
SLOWEST = "p99 that the gateway adds to a request at one connection"
EVENT = "p99 of an event of 256 streams through the gateway"
_ROUNDS, _WINDOW_S, _WARM_UP_S = 3, 1.0, 0.4
_NAMES: tuple[Name, ...] = ("direct", "millrace")
_ROOT = Path(__file__).parents[2]


def measure() -> dict[str, float]:
    """Return milliseconds: medians of rounds in which the upstream and the gateway take turns. Raises NotHere."""
    if sys.platform != "linux":
        raise NotHere("the load and the gateway are placed on cores of their own, which needs Linux")
    results, is_first = Results(), _may_be_first()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        opened(
            Path(folder), _ROOT / ".bench", server_core=0, load_core=1, realtime=is_first, prompt_bytes=500
        ) as arena,
    ):
        for name in _NAMES:
            if name != "direct":
                arena.start(name)
            arena.measure(name, SOME.order(_WARM_UP_S))
        for scenario in (ONE, CROWD) * _ROUNDS:
            for name in _NAMES:
                window = arena.measure(name, scenario.order(_WINDOW_S), is_timed=True)
                results.windows.setdefault((name, scenario.name), []).append(window)
    added = results.paired("millrace", "direct", (ONE,), lambda ours, direct: _p50_ms(ours) - _p50_ms(direct))
    found = {ADDED: median(added)}
    if not is_first:
        return found
    slowest = results.paired("millrace", "direct", (ONE,), lambda ours, direct: _p99_ms(ours) - _p99_ms(direct))
    return found | {SLOWEST: median(slowest), EVENT: _event_ms(results.of("millrace", CROWD))}


def _may_be_first() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return shutil.which("chrt") is not None


def _p50_ms(window: Window) -> float:
    return window.saw.latency.p50 / 1e3 if window.saw.latency else float("inf")


def _p99_ms(window: Window) -> float:
    return window.saw.latency.p99 / 1e3 if window.saw.latency else float("inf")


def _event_ms(windows: Sequence[Window]) -> float:
    return median(each.saw.transit.p99 / 1e3 if each.saw.transit else float("inf") for each in windows)
