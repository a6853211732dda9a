"""Counters, gauges and histograms as plain numbers: cheap to update, converted for Prometheus at the scrape.

One event loop adds to most of them. If threads also do, a count may miss some increments: metrics are for
monitoring, the ledger is for accounting.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = tuple[str, Labels, tuple[str, ...], float]
"""Suffix of the name, label names, label values, value."""

# A label with values chosen by callers must not fill the memory.
_SERIES_MAX = 2_000
_OTHER = "other"


class Count:
    """One series that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add an amount, in the metric's unit."""
        self.value += amount


class Spread:
    """One series of observations, counted by the least bound that they do not pass; all in the metric's unit."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add one observation, in the metric's unit."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Counter:
    """Counts by label values, or external counts that `read` returns at each scrape."""

    kind: Literal["counter"] = "counter"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self._labels = name, text, labels
        self._series: dict[Labels, Count] = {} if labels else {(): Count()}
        self.read: Callable[[], Mapping[Labels, float]] | None = None

    def labels(self, *values: str) -> Count:
        series = self._series.get(values)
        if series is None:
            series = self._series.setdefault(_bounded(values, len(self._series)), Count())
        return series

    def inc(self, amount: float = 1) -> None:
        """Add an amount, in the metric's unit, to the series of a counter without labels."""
        self._series[()].inc(amount)

    def counts(self) -> dict[Labels, float]:
        """Return the counts by labels, in the metric's unit."""
        return {values: series.value for values, series in list(self._series.items())}

    def samples(self) -> Iterator[Sample]:
        counts = (
            self.read() if self.read else {values: series.value for values, series in list(self._series.items())}
        )
        for values, value in counts.items():
            yield "_total", self._labels, values, value


class Histogram:
    """Histograms by label values; observations and bounds are in the metric's unit."""

    kind: Literal["histogram"] = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        self.name, self.text, self._bounds, self._labels = name, text, bounds, labels
        self._series: dict[Labels, Spread] = {} if labels else {(): Spread(bounds)}

    def labels(self, *values: str) -> Spread:
        series = self._series.get(values)
        if series is None:
            series = self._series.setdefault(_bounded(values, len(self._series)), Spread(self._bounds))
        return series

    def observe(self, value: float) -> None:
        """Add one observation, in the metric's unit, to a histogram without labels."""
        self._series[()].observe(value)

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets, in the metric's unit."""
        return self._bounds

    def counts(self) -> dict[Labels, tuple[int, ...]]:
        """Return the observations in each bucket, by labels; there is one more bucket than bounds."""
        return {values: tuple(series.counts) for values, series in list(self._series.items())}

    def samples(self) -> Iterator[Sample]:
        names = (*self._labels, "le")
        for values, series in list(self._series.items()):
            below = 0
            for bound, count in zip((*map(_bound_text, self._bounds), "+Inf"), list(series.counts), strict=True):
                below += count
                yield "_bucket", names, (*values, bound), below
            yield "_count", self._labels, values, below
            yield "_sum", self._labels, values, series.total


class Gauge:
    """A gauge: the last set value, or the result of `read` at the scrape; by labels if there are any."""

    kind: Literal["gauge"] = "gauge"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self._labels = name, text, labels
        self._levels: dict[Labels, float] = {} if labels else {(): 0.0}
        self.read: Callable[[], dict[Labels, float]] | None = None

    def set(self, value: float, *values: str) -> None:
        """Set the level for these label values, in the metric's unit."""
        self._levels[_bounded(values, len(self._levels))] = value

    def samples(self) -> Iterator[Sample]:
        levels = self.read() if self.read else dict(self._levels)
        for values, value in levels.items():
            yield "", self._labels, values, value


Instrument: TypeAlias = Counter | Histogram | Gauge


def _bounded(values: Labels, series: int) -> Labels:
    return values if series < _SERIES_MAX else (_OTHER,) * len(values)


def _bound_text(bound: float) -> str:
    return str(float(bound))
