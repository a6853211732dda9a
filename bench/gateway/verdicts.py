"""Define the promised figures, their measurements, and whether these keep the promise."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.gateway.arena import Start, Window
from bench.gateway.contestants import Name
from bench.gateway.load import Quantiles
from bench.gateway.rounds import CROWD, MANY, ONE, SOME, STREAMS, Results, Scenario

MILLRACE: Name = "millrace"
_PLAIN = (SOME, MANY)


@dataclass(frozen=True, slots=True)
class Figure:
    """`must` and `aim` are upper bounds, or lower bounds with `is_least`."""

    name: str
    values: Sequence[float]
    must: float | None
    aim: float | None
    unit: str = ""
    is_least: bool = False

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def reached(self) -> str:
        if self.value is None:
            return "not measured"
        if self.aim is not None and self._keeps(self.value, self.aim):
            return "aim"
        if self.must is None:
            return "not the aim"
        return "must" if self._keeps(self.value, self.must) else "missed"

    def _keeps(self, value: float, bound: float) -> bool:
        return value >= bound if self.is_least else value <= bound


def figures(results: Results) -> list[Figure]:
    """Return the promised figures of the gateway's speed, in the order of the promises."""
    start = results.starts.get(MILLRACE)
    return [
        Figure("CPU per request, over nginx", _over(results, "nginx", _PLAIN), 5, None, "x"),
        Figure("CPU per request, over SGLang's router", _over(results, "sglang", _PLAIN), None, 1, "x"),
        Figure("CPU per request, LiteLLM's over Millrace's", _under_litellm(results), 80, 160, "x", is_least=True),
        Figure("CPU per stream of 32 events, over nginx", _over(results, "nginx", (STREAMS,)), 3, 2, "x"),
        Figure("p50 added at one connection", _added_ms(results, lambda found: found.p50), 0.7, 0.35, " ms"),
        Figure("p99 added at one connection", _added_ms(results, lambda found: found.p99), 1.5, 0.7, " ms"),
        Figure("streams a second, 256 at 50 events/s", _streams_per_s(results), 300, 350, "/s", is_least=True),
        Figure("an event's p99 among them", _transit_p99_ms(results), None, 15, " ms"),
        Figure("RSS once it answers", _of(start, lambda begun: begun.rss_mb), 120, 80, " MB"),
        Figure("RSS after all rounds", _of(start, lambda _: results.rss_after_mb[MILLRACE]), 120, 80, " MB"),
        Figure("CPU until it answers", _of(start, lambda begun: begun.cpu_s), 2.5, 1.2, " s"),
    ]


def soaked(before_mb: float, after_mb: float, requests: int) -> Figure:
    """Return the memory growth by requests, in a process that has already served many."""
    return Figure(f"RSS added by {requests:,} more requests", [after_mb - before_mb], 2, 1, " MB")


def _over(results: Results, other: Name, scenarios: Sequence[Scenario]) -> list[float]:
    return results.paired(MILLRACE, other, scenarios, lambda mine, others: mine.cpu_us / others.cpu_us)


def _under_litellm(results: Results) -> list[float]:
    return results.paired("litellm", MILLRACE, _PLAIN, lambda others, mine: others.cpu_us / mine.cpu_us)


def _added_ms(results: Results, quantile: Callable[[Quantiles], float]) -> list[float]:
    def added(mine: Window, direct: Window) -> float | None:
        if mine.saw.latency is None or direct.saw.latency is None:
            return None
        return (quantile(mine.saw.latency) - quantile(direct.saw.latency)) / 1e3

    return results.paired(MILLRACE, "direct", (ONE,), added)


def _streams_per_s(results: Results) -> list[float]:
    return sorted(window.per_s for window in results.of(MILLRACE, CROWD))


def _transit_p99_ms(results: Results) -> list[float]:
    return sorted(window.saw.transit.p99 / 1e3 for window in results.of(MILLRACE, CROWD) if window.saw.transit)


def _of(start: Start | None, figure: Callable[[Start], float]) -> list[float]:
    return [figure(start)] if start else []
