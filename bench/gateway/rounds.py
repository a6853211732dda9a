"""Define the loads, and collect each contestant's results per load and round."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.gateway.arena import Arena, Start, Window
from bench.gateway.contestants import Name, NotHere
from bench.gateway.load import Order
from bench.gateway.upstream import MODEL

EVENTS = 32
# For LiteLLM a few windows are enough, and each takes most of a minute to drain.
_SLOW_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """A number of connections, with whole answers or streams of EVENTS events at intervals of `pause_us`."""

    name: str
    connections: int
    is_stream: bool = False
    pause_us: int = 0
    share_of_window: float = 1.0
    is_timed: bool = False
    """Whether it measures delay. It leaves the core spare time."""

    def order(self, seconds: float) -> Order:
        return Order(
            base_url="",
            key="",
            model=MODEL,
            connections=self.connections,
            seconds=seconds * self.share_of_window,
            events=EVENTS if self.is_stream else 0,
            pause_us=self.pause_us,
        )


ONE = Scenario("c1", 1, is_timed=True)
SOME = Scenario("c8", 8)
MANY = Scenario("c64", 64, share_of_window=1.5)
STREAMS = Scenario("s16", 16, is_stream=True, pause_us=10_000, share_of_window=1.5)
# 12,500 events/s: the upstream can serve 390 streams/s at most.
CROWD = Scenario("s256", 256, is_stream=True, pause_us=20_000, share_of_window=2, is_timed=True)
SCENARIOS = (ONE, SOME, MANY, STREAMS, CROWD)


@dataclass(slots=True)
class Results:
    """All results, with medians and ratios of them."""

    starts: dict[Name, Start] = field(default_factory=dict)
    windows: dict[tuple[Name, str], list[Window]] = field(default_factory=dict)
    rss_after_mb: dict[Name, float] = field(default_factory=dict)
    absent: dict[Name, str] = field(default_factory=dict)

    def of(self, name: Name, scenario: Scenario) -> list[Window]:
        return self.windows.get((name, scenario.name), [])

    def median(self, name: Name, scenario: Scenario, figure: Callable[[Window], float | None]) -> float | None:
        values = [value for window in self.of(name, scenario) if (value := figure(window)) is not None]
        return statistics.median(values) if values else None

    def paired(
        self,
        name: Name,
        other: Name,
        scenarios: Sequence[Scenario],
        figure: Callable[[Window, Window], float | None],
    ) -> list[float]:
        """Compare two windows of each round, and skip rounds that only one of the two has."""
        pairs = (
            pair
            for scenario in scenarios
            for pair in zip(self.of(name, scenario), self.of(other, scenario), strict=False)
        )
        return sorted(value for mine, others in pairs if (value := figure(mine, others)) is not None)

    def errors(self, name: Name) -> dict[str, int]:
        counts: dict[str, int] = {}
        for (whose, _), windows in self.windows.items():
            for window in windows if whose == name else ():
                for what, count in window.saw.errors.items():
                    counts[what] = counts.get(what, 0) + count
        return counts

    @property
    def paces_ms(self) -> list[float]:
        return sorted(window.pace_ms for windows in self.windows.values() for window in windows)


def run(
    arena: Arena, names: Sequence[Name], *, rounds: int, seconds: float, report: Callable[[str], None]
) -> Results:
    """Start all, warm each up, then let them alternate in every round, in reverse order every second round."""
    results = Results()
    for name in names:
        try:
            start = arena.start(name)
        except NotHere as reason:
            results.absent[name] = str(reason)
            report(f"{name}: not measured: {reason}")
            continue
        results.starts[name] = start
        for scenario in (SOME, STREAMS):
            arena.measure(name, scenario.order(0.4))
        report(f"{name} answers after {start.wall_s:.1f} s, {start.cpu_s:.2f} s of CPU; {start.rss_mb:.0f} MB")
    for number, name, scenario in _turns(arena, list(results.starts), rounds):
        window = arena.measure(name, scenario.order(seconds), is_timed=scenario.is_timed)
        results.windows.setdefault((name, scenario.name), []).append(window)
        if window.saw.errors:
            report(f"round {number + 1}, {name}, {scenario.name}: {window.saw.errors}")
    results.rss_after_mb = {name: arena.rss_mb(name) for name in results.starts}
    return results


def _turns(arena: Arena, names: list[Name], rounds: int) -> Iterator[tuple[int, Name, Scenario]]:
    for number in range(rounds):
        for scenario in SCENARIOS:
            for name in names if number % 2 == 0 else reversed(names):
                is_spared = scenario is CROWD and number >= _SLOW_ROUNDS and arena.is_slow(name)
                if not is_spared:
                    yield number, name, scenario
