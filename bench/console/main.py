"""Measure `python -m bench console`: what twenty live pages take from the requests beside them (Linux).

Blocks with and without viewers alternate in one run, in reverse order every second pair. Each has a steady load,
then a maximal one.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.console.instance import DidNotStart, Instance, opened
from bench.console.viewers import RecordingSink
from bench.gateway.load import Order, Saw
from bench.gateway.upstream import MODEL

LOSS_MUST = 0.05
# Rows that the log and the ledger have from the start, because pages search them.
_BEFORE = 30_000
_BEFORE_S = 120.0
# By then postponed work is done, and streams have sent their initial content.
_SETTLED_S = 3.0


@dataclass(frozen=True, slots=True)
class Window:
    """One load, with or without viewers."""

    saw: Saw
    cpu_s: float

    @property
    def busy(self) -> float:
        """The share of one core that the gateway used."""
        return self.cpu_s / self.saw.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / max(1, self.saw.requests) * 1e6

    @property
    def per_s(self) -> float:
        return self.saw.answered / self.saw.seconds


@dataclass(frozen=True, slots=True)
class Block:
    """`silences_s` is each page's longest time without news, under the steady and the maximal load."""

    steady: Window
    full: Window
    silences_s: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    alone: Block
    looked_at: Block

    @property
    def taken(self) -> float:
        """The share of a core that pages take under the steady load, which requests could have used."""
        return self.looked_at.steady.busy - self.alone.steady.busy

    @property
    def lost(self) -> float:
        """The share of requests per CPU second that is lost when the core is full."""
        return 1 - self.alone.full.cpu_us / self.looked_at.full.cpu_us

    @property
    def lost_per_s(self) -> float:
        """The same by the wall clock, which includes other work of the machine."""
        return 1 - self.looked_at.full.per_s / self.alone.full.per_s


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench console", description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the steady load, in a block")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second of the steady load")
    parser.add_argument("--full-seconds", type=float, default=5.0, help="of the large load, in a block")
    parser.add_argument("--before", type=int, default=_BEFORE, help="requests in the log at the start")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--ahead", action="store_true", help="run all of it before other work (root)")
    given = parser.parse_args(arguments)
    full = Order(base_url="", key="", model=MODEL, connections=64, seconds=given.full_seconds)
    steady = Order(base_url="", key="", model=MODEL, connections=8, seconds=given.seconds, per_s=given.rate)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
            opened(
                Path(folder), server_core=given.server_core, load_core=given.load_core, is_ahead=given.ahead
            ) as marketplace,
        ):
            _fill(marketplace, given.before)
            pairs = []
            for number in range(given.pairs):
                pairs.append(_pair(marketplace, steady, full, is_swapped=number % 2 == 1))
                _tell(number, pairs[-1])
    except DidNotStart as reason:
        sys.exit(f"error: {reason}")
    print(table(pairs))


def _fill(marketplace: Instance, requests: int) -> None:
    order = Order(base_url="", key="", model=MODEL, connections=8, seconds=_BEFORE_S, requests_max=requests)
    marketplace.ask(order)


def _pair(marketplace: Instance, steady: Order, full: Order, *, is_swapped: bool) -> Pair:
    if is_swapped:
        looked_at = _block(marketplace, steady, full, has_viewers=True)
        return Pair(_block(marketplace, steady, full, has_viewers=False), looked_at)
    alone = _block(marketplace, steady, full, has_viewers=False)
    return Pair(alone, _block(marketplace, steady, full, has_viewers=True))


def _block(marketplace: Instance, steady: Order, full: Order, *, has_viewers: bool) -> Block:
    heard: list[RecordingSink] = []
    with ExitStack() as looking:
        if has_viewers:
            looking.enter_context(marketplace.looked_at(heard))
        time.sleep(_SETTLED_S)
        began_ns = time.monotonic_ns()
        first = _window(marketplace, steady)
        between_ns = time.monotonic_ns()
        second = _window(marketplace, full)
        end_ns = time.monotonic_ns()
    for each in heard:
        if each.status != 200 or each.has_ended:
            raise DidNotStart(f"{each.who}'s stream of {each.path} ended, status {each.status}")
    parts = (silences(heard, began_ns, between_ns), silences(heard, between_ns, end_ns))
    return Block(first, second, {path: (parts[0][path], parts[1][path]) for path in parts[0]})


def _window(marketplace: Instance, order: Order) -> Window:
    before_s = marketplace.cpu_s
    saw = marketplace.ask(order)
    used_s = marketplace.cpu_s - before_s
    if saw.errors:
        raise DidNotStart(f"requests failed: {saw.errors}")
    return Window(saw, used_s)


def silences(heard: Sequence[RecordingSink], began_ns: int, end_ns: int) -> dict[str, float]:
    """The longest while, in seconds, that any viewer of each page heard nothing new."""
    longest: dict[str, float] = defaultdict(float)
    for each in heard:
        inside = [at_ns for at_ns in each.at_ns if began_ns < at_ns < end_ns]
        moments = [began_ns, *inside, end_ns]
        gap_ns = max(after - before for before, after in pairwise(moments))
        longest[each.path] = max(longest[each.path], gap_ns / 1e9)
    return dict(longest)


def table(pairs: Sequence[Pair]) -> str:
    load = os.getloadavg()[0]
    lines = ["| figure | measured | range | must |", "|---|---|---|---|"]
    shares: list[tuple[str, Callable[[Pair], float]]] = [
        ("of a core, taken by pages under the steady load", lambda pair: pair.taken),
        ("of requests per second of CPU, lost where the core is full", lambda pair: pair.lost),
        ("the same by the wall clock", lambda pair: pair.lost_per_s),
    ]
    for name, figure in shares:
        values = [figure(pair) for pair in pairs]
        cells = (name, f"{statistics.median(values):.1%}", f"{min(values):.1%} to {max(values):.1%}")
        lines.append(f"| {' | '.join(cells)} | < {LOSS_MUST:.0%} |")
    lines += [
        "",
        "| load | viewers | requests/s | CPU us a request | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("steady", "full"):
        for viewers in ("alone", "looked_at"):
            windows: list[Window] = [getattr(getattr(pair, viewers), kind) for pair in pairs]
            lines.append(f"| {kind} | {'20' if viewers == 'looked_at' else 'none'} | {_cells(windows)} |")
    lines += ["", "| page | longest without news, steady, s | full, s |", "|---|---|---|"]
    for path in sorted(pairs[0].looked_at.silences_s):
        worst = [max(pair.looked_at.silences_s[path][part] for pair in pairs) for part in (0, 1)]
        lines.append(f"| {path.removesuffix('/live')} | {worst[0]:.1f} | {worst[1]:.1f} |")
    return "\n".join([*lines, "", f"Load of the machine {load:.1f}."])


def _cells(windows: Sequence[Window]) -> str:
    figures: list[Callable[[Window], float]] = [
        lambda window: window.per_s,
        lambda window: window.cpu_us,
        lambda window: window.saw.latency.p50 / 1e3 if window.saw.latency else 0.0,
        lambda window: window.saw.latency.p99 / 1e3 if window.saw.latency else 0.0,
    ]
    values = [statistics.median(figure(window) for window in windows) for figure in figures]
    return " | ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values)


def _tell(number: int, pair: Pair) -> None:
    print(
        f"pair {number + 1}: {pair.taken:.1%} of a core; {pair.lost:.1%} of a full one, {pair.lost_per_s:.1%} by "
        f"the wall clock; steady {pair.alone.steady.busy:.1%} and {pair.looked_at.steady.busy:.1%} busy; "
        f"load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
        flush=True,
    )
