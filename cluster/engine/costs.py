"""The cost of a step on each stage of a pipeline, learned while it runs, and what follows from it for batching.

A stage's time for a step is modelled as c0 + c1 * rows + c2 * pairs. A pair is one row that attends to one earlier
position. Observations are averaged by size of step, so that decoding does not erase what long prefills have
taught. Weighted least squares fit the three coefficients to these averages.
"""

import math
from collections import deque
from dataclasses import dataclass, field

# The weight of one observation in its size's average.
_FRESH = 0.1
_FIT_EVERY = 16
_HOP_WINDOW = 64
# Two numbers of groups count as equally good if the ratio of their throughputs is above this.
_WORTH = 0.97
_SIZES_MAX = 12
_MANY_ROWS = 32


@dataclass(slots=True)
class _Average:
    """The average of steps of about one size."""

    rows: float
    pairs: float
    seconds: float

    def include(self, rows: int, pairs: int, seconds: float) -> None:
        # A step that waited for a core does not measure the stage: cap outliers at twice the average.
        seconds = min(seconds, 2 * self.seconds)
        self.rows += _FRESH * (rows - self.rows)
        self.pairs += _FRESH * (pairs - self.pairs)
        self.seconds += _FRESH * (seconds - self.seconds)


@dataclass(slots=True)
class StageCost:
    """One stage's fitted coefficients c0, c1 and c2, in seconds."""

    coefficients: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _averages: dict[int, _Average] = field(default_factory=dict)
    _observed: int = 0

    @property
    def is_known(self) -> bool:
        return self._observed > 0

    def has_seen(self, rows: int) -> bool:
        """Tell whether a step of about this size has been observed."""
        return _size_of(rows) in self._averages

    def observe(self, rows: int, pairs: int, seconds: float) -> None:
        """Learn from one step: its rows, its pairs, and how long the stage was busy with it (in seconds)."""
        size = _size_of(rows)
        if size in self._averages:
            self._averages[size].include(rows, pairs, seconds)
        else:
            self._averages[size] = _Average(rows, pairs, seconds)
        self._observed += 1
        if self._observed <= _FIT_EVERY or self._observed % _FIT_EVERY == 0:
            self.coefficients = _fit(list(self._averages.values()))

    def seconds(self, rows: float, pairs: float = 0.0) -> float:
        """Return the expected seconds of a step on this stage: `rows` are computed, `pairs` attend."""
        c0, c1, c2 = self.coefficients
        return c0 + c1 * rows + c2 * pairs


class PipelineCosts:
    """The costs of all stages, and the time that frames spend between them."""

    def __init__(self, stages: int) -> None:
        self.stages = [StageCost() for _ in range(stages)]
        self._between: deque[float] = deque(maxlen=_HOP_WINDOW)
        # The time of one round trip outside the stages' work. It is the recent minimum, since the rest is
        # queueing.
        self.links_s = 0.0

    @property
    def is_known(self) -> bool:
        return all(stage.is_known for stage in self.stages)

    def has_seen(self, rows: int) -> bool:
        """Tell whether every stage has observed a step of about this size. Other sizes are only estimates."""
        return all(stage.has_seen(rows) for stage in self.stages)

    def observe(self, rows: int, pairs: int, spent_ns: list[int], round_trip_s: float) -> None:
        """Learn from one returned step.

        `spent_ns` is the busy time of each stage, `round_trip_s` the time that the step was under way.
        """
        for stage, spent in zip(self.stages, spent_ns, strict=False):
            stage.observe(rows, pairs, spent / 1e9)
        self._between.append(max(0.0, round_trip_s - sum(spent_ns) / 1e9))
        self.links_s = min(self._between)

    def step_s(self, rows: float, pairs: float = 0.0) -> float:
        """Return the seconds of one step with this many rows and pairs: a round trip through an idle pipeline."""
        return sum(stage.seconds(rows, pairs) for stage in self.stages) + self.links_s

    def groups(self, sequences: int) -> int:
        """Return the number of micro-batches that gives this many decoding sequences the most tokens per second.

        With m groups of b sequences a pipeline gives sequences / max(round trip with b, m * slowest stage with b)
        tokens per second. Several numbers may come close to the best. Take the one nearest to the number of
        stages, since it keeps all of them busy. Take it also before anything has been measured.
        """
        if sequences < 2 or not self.is_known:
            return max(1, min(len(self.stages), sequences))
        periods = {}
        for groups in range(1, sequences + 1):
            rows = math.ceil(sequences / groups)
            if math.ceil(sequences / rows) == groups:  # Otherwise fewer groups of the same size suffice.
                slowest_s = max(stage.seconds(rows) for stage in self.stages)
                periods[groups] = max(self.step_s(rows), groups * slowest_s)
        best_s = min(periods.values())
        good = [groups for groups, period_s in periods.items() if period_s * _WORTH <= best_s]
        return min(good, key=lambda groups: abs(groups - len(self.stages)))

    def prefill_rows(self, pending: int, least: int, most: int) -> int:
        """Return the rows of a prefill chunk that make chunks overlap on the stages while nothing decodes.

        k chunks take (k + stages - 1) * (c0 + c1 * pending / k). This is minimal at k = sqrt((stages - 1) c1
        pending / c0).
        """
        chunks = 1.0
        if len(self.stages) > 1:
            c0, c1, _ = max((stage.coefficients for stage in self.stages), key=lambda c: c[1])
            chunks = math.sqrt((len(self.stages) - 1) * c1 * pending / c0) if c0 > 0 else len(self.stages)
        return min(most, max(least, math.ceil(pending / max(1.0, round(chunks)))))

    def beside_rows(self, decoding: int, slowdown: float, least: int, most: int) -> int:
        """Return how many prefill rows make a step of `decoding` rows at most `slowdown` times as long."""
        room = float(most)
        for stage in self.stages:
            c1 = stage.coefficients[1]
            if c1 > 0:
                room = min(room, (slowdown - 1) * stage.seconds(decoding) / c1)
        return min(most, max(least, int(room)))


def _size_of(rows: int) -> int:
    return min(_SIZES_MAX, rows.bit_length())


def _fit(averages: list[_Average]) -> tuple[float, float, float]:
    """Return the coefficients of least relative error. Drop the most negative one until none is negative."""
    used = _separable(averages)
    while True:
        solved = _solve(averages, used)
        negative = [at for at in used if solved[at] < 0]
        if not negative:
            return solved[0], solved[1], solved[2]
        used.remove(min(negative, key=lambda at: solved[at]))


def _separable(averages: list[_Average]) -> list[int]:
    """Return the coefficients that these sizes can tell apart.

    Observations of a single size fit only one coefficient: the overhead, or the cost of rows.
    """
    if len(averages) == 1:
        return [0] if averages[0].rows < _MANY_ROWS else [1]
    return [0, 1, 2] if len(averages) > 3 else [0, 1]


def _solve(averages: list[_Average], used: list[int]) -> list[float]:
    """Solve weighted least squares over the features in `used`, with a trace of ridge for too few sizes."""
    scales = (1.0, 64.0, 65536.0)
    matrix = [[0.0] * len(used) for _ in used]
    target = [0.0] * len(used)
    for average in averages:
        values = (1.0, average.rows, average.pairs)
        features = [values[at] / scales[at] / average.seconds for at in used] if average.seconds > 0 else None
        if features is None:
            continue
        for row, left in enumerate(features):
            target[row] += left
            for column, right in enumerate(features):
                matrix[row][column] += left * right
    for at in range(len(used)):
        matrix[at][at] *= 1 + 1e-6
        matrix[at][at] += 1e-12
    solution = _gauss(matrix, target)
    full = [0.0, 0.0, 0.0]
    for at, value in zip(used, solution, strict=True):
        full[at] = value / scales[at]
    return full


def _gauss(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Solve a small symmetric positive system by Gaussian elimination with pivoting."""
    size = len(target)
    rows = [[*matrix[at], target[at]] for at in range(size)]
    for pivot in range(size):
        lead = max(range(pivot, size), key=lambda at: abs(rows[at][pivot]))
        rows[pivot], rows[lead] = rows[lead], rows[pivot]
        if rows[pivot][pivot] == 0:
            continue
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            rows[below] = [b - factor * p for b, p in zip(rows[below], rows[pivot], strict=True)]
    solution = [0.0] * size
    for at in range(size - 1, -1, -1):
        rest = rows[at][size] - sum(rows[at][k] * solution[k] for k in range(at + 1, size))
        solution[at] = rest / rows[at][at] if rows[at][at] else 0.0
    return solution
