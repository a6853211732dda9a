"""Measure the promised latencies in a short run, and exit with 1 if one is broken: `make bench-check`.

The bounds are generous: they hold on any machine that has two cores for this run. A busier one may have more of
everything with `--times 3`.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.gateway.contestants import NotHere
from bench.promised import cluster, computing, gateway, several

_PERFORMANCE, _OPERATIONS = "docs/performance.md", "docs/operations.md"


@dataclass(frozen=True, slots=True)
class Promise:
    """What is measured, the most that it may be, in which unit, and the page that promises it."""

    name: str
    most: float
    unit: str
    page: str


PROMISES = (
    Promise(gateway.ADDED, 2.0, "ms", _PERFORMANCE),
    Promise(gateway.EVENT, 40.0, "ms", _PERFORMANCE),
    Promise(gateway.SLOWEST, 4.0, "ms", _PERFORMANCE),
    Promise(several.KEY, 5.0, "s", _OPERATIONS),
    Promise(several.LIMIT, 5.0, "s", _OPERATIONS),
    Promise(several.SLOW_CLIENTS, 10.0, "s", _PERFORMANCE),
    Promise(several.FORMS, 15.0, "s", _PERFORMANCE),
    Promise(several.HANG_UPS, 5.0, "s", _OPERATIONS),
    Promise(several.FROZEN_FREE, 3.0, "s", _OPERATIONS),
    Promise(several.FROZEN_PAID, 12.0, "s", _OPERATIONS),
    # The figure that is promised, and the time of a request that asks for it.
    Promise(several.PLACES, 5.0, "s", _OPERATIONS),
    Promise(several.LEADER, 7.0, "s", _OPERATIONS),
    Promise(several.CREDITS, 35.0, "s", _OPERATIONS),
    Promise(several.SECOND_SIGNAL, 30.0, "s", _PERFORMANCE),
    Promise(cluster.STANDBY, 3.0, "s", _PERFORMANCE),
    Promise(cluster.REPLAN, 15.0, "s", _PERFORMANCE),
    Promise(cluster.LOST, 0.0, "streams", _PERFORMANCE),
    Promise(cluster.FROZEN, 2.5, "s", _PERFORMANCE),
    Promise(cluster.HANG_UP, 0.5, "times", _PERFORMANCE),
    Promise(computing.PLAN, 2.0, "s of CPU", _PERFORMANCE),
    Promise(computing.TEXT, 1.0, "s of CPU", _PERFORMANCE),
)

MEASURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "computing": computing.measure,
    "gateway": gateway.measure,
    "several": several.measure,
    "cluster": cluster.measure,
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench check", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), help="all by default")
    parser.add_argument("--times", type=float, default=1.0, help="multiply every bound by this")
    given = parser.parse_args(arguments)
    began_s, found, lines = time.monotonic(), dict[str, float](), list[str]()
    for name in given.only:
        try:
            found |= MEASURES[name]()
        except NotHere as reason:
            print(f"not measured: {name}: {reason}")
        except (AssertionError, TimeoutError) as never:
            lines.append(f"BROKEN: {name}: what is measured never came: {never!r}")
    print(table(PROMISES, found, given.times))
    print(f"\n{len(found)} figures in {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    lines += broken(PROMISES, found, given.times)
    print("\n".join(lines) or "every promise that was measured is kept")
    sys.exit(bool(lines))


def broken(promises: Sequence[Promise], found: Mapping[str, float], times: float = 1.0) -> Iterator[str]:
    """Yield a line for every broken promise. `times` multiplies each bound; what was not measured is left out."""
    for promise in promises:
        value = found.get(promise.name)
        if value is not None and not value <= promise.most * times:
            yield (
                f"BROKEN: {promise.name}: {_figure(value)} {promise.unit}, "
                f"at most {_figure(promise.most * times)} is promised in {promise.page}"
            )


def table(promises: Sequence[Promise], found: Mapping[str, float], times: float = 1.0) -> str:
    """Return what was measured as Markdown. `times` multiplies each bound."""
    rows = ["| figure | measured | at most | promised in |", "|---|---|---|---|"]
    rows += [
        f"| {promise.name} | {_figure(found[promise.name])} {promise.unit} "
        f"| {_figure(promise.most * times)} | {promise.page} |"
        for promise in promises
        if promise.name in found
    ]
    return "\n".join(rows)


def _figure(value: float) -> str:
    return f"{value:.3g}"
