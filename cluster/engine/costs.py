"""What a step costs on each stage of a ring, learned while it runs, and what follows for batching.

A stage's time for a step is modelled as c0 + c1 * rows + c2 * pairs, where a pair is one row that looks at one
earlier position. Observations are averaged by size of step, so that what was learned of long prefills is not
forgotten while everybody decodes; the three coefficients are fitted over these averages by weighted least squares.
"""

import math
from collections import deque
from dataclasses import dataclass, field

# An observation's weight in its size's average.
_FRESH = 0.1
_FIT_EVERY = 16
_HOP_WINDOW = 64
# Numbers of groups whose throughput differs by less than this are as good as each other.
_WORTH = 0.97
_SIZES_MAX = 12
_MANY_ROWS = 32


@dataclass(slots=True)
class _Average:
    """Steps of about one size, averaged."""

    rows: float
    pairs: float
    seconds: float

    def include(self, rows: int, pairs: int, seconds: float) -> None:
        # A step that waited for a core is no measure of the stage: outliers count like twice the average.
        seconds = min(seconds, 2 * self.seconds)
        self.rows += _FRESH * (rows - self.rows)
        self.pairs += _FRESH * (pairs - self.pairs)
        self.seconds += _FRESH * (seconds - self.seconds)


@dataclass(slots=True)
class StageCost:
    """One stage's fitted c0, c1, c2 in seconds."""

    coefficients: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _averages: dict[int, _Average] = field(default_factory=dict)
    _observed: int = 0

    @property
    def is_known(self) -> bool:
        return self._observed > 0

    def has_seen(self, rows: int) -> bool:
        """Whether a step of about this size has been observed."""
        return _size_of(rows) in self._averages

    def observe(self, rows: int, pairs: int, seconds: float) -> None:
        size = _size_of(rows)
        if size in self._averages:
            self._averages[size].include(rows, pairs, seconds)
        else:
            self._averages[size] = _Average(rows, pairs, seconds)
        self._observed += 1
        if self._observed <= _FIT_EVERY or self._observed % _FIT_EVERY == 0:
            self.coefficients = _fit(list(self._averages.values()))

    def seconds(self, rows: float, pairs: float = 0.0) -> float:
        c0, c1, c2 = self.coefficients
        return c0 + c1 * rows + c2 * pairs


class RingCosts:
    """All stages' costs and the time that frames spend between them."""

    def __init__(self, stages: int) -> None:
        self.stages = [StageCost() for _ in range(stages)]
        self._between: deque[float] = deque(maxlen=_HOP_WINDOW)
        # What one way round takes beside the stages' work: the least seen lately, since the rest is queueing.
        self.links_s = 0.0

    @property
    def is_known(self) -> bool:
        return all(stage.is_known for stage in self.stages)

    def has_seen(self, rows: int) -> bool:
        """Whether a step of about this size has been observed on every stage: others are only guessed at."""
        return all(stage.has_seen(rows) for stage in self.stages)

    def observe(self, rows: int, pairs: int, spent_ns: list[int], round_trip_s: float) -> None:
        """One step came back: how long each stage was busy with it, and how long it was under way."""
        for stage, spent in zip(self.stages, spent_ns, strict=False):
            stage.observe(rows, pairs, spent / 1e9)
        self._between.append(max(0.0, round_trip_s - sum(spent_ns) / 1e9))
        self.links_s = min(self._between)

    def step_s(self, rows: float, pairs: float = 0.0) -> float:
        """One step of so many rows, all the way round an idle ring."""
        return sum(stage.seconds(rows, pairs) for stage in self.stages) + self.links_s

    def slowest_s(self, rows: float, pairs: float = 0.0) -> float:
        return max(stage.seconds(rows, pairs) for stage in self.stages)

    def groups(self, sequences: int) -> int:
        """Into how many micro-batches so many decoding sequences are split for the most tokens per second.

        With m groups of b sequences a ring gives sequences / max(one way round with b, m * slowest stage with b)
        tokens per second. Of those that come close to the best, and before anything has been measured, the one
        nearest to the number of stages is taken: it keeps all of them busy.
        """
        if sequences < 2 or not self.is_known:
            return max(1, min(len(self.stages), sequences))
        periods = {}
        for groups in range(1, sequences + 1):
            rows = math.ceil(sequences / groups)
            if math.ceil(sequences / rows) == groups:  # Otherwise fewer groups of the same size do.
                periods[groups] = max(self.step_s(rows), groups * self.slowest_s(rows))
        best_s = min(periods.values())
        good = [groups for groups, period_s in periods.items() if period_s * _WORTH <= best_s]
        return min(good, key=lambda groups: abs(groups - len(self.stages)))

    def prefill_rows(self, pending: int, least: int, most: int) -> int:
        """Rows of a prefill chunk while nobody decodes, such that chunks overlap on the stages.

        k chunks take (k + stages - 1) * (c0 + c1 * pending / k): least at k = sqrt((stages - 1) c1 pending / c0).
        """
        chunks = 1.0
        if len(self.stages) > 1:
            c0, c1, _ = max((stage.coefficients for stage in self.stages), key=lambda c: c[1])
            chunks = math.sqrt((len(self.stages) - 1) * c1 * pending / c0) if c0 > 0 else len(self.stages)
        return min(most, max(least, math.ceil(pending / max(1.0, round(chunks)))))

    def beside_rows(self, decoding: int, slowdown: float, least: int, most: int) -> int:
        """Rows of a prefill chunk that make a step with `decoding` rows at most `slowdown` times as long."""
        room = float(most)
        for stage in self.stages:
            c1 = stage.coefficients[1]
            if c1 > 0:
                room = min(room, (slowdown - 1) * stage.seconds(decoding) / c1)
        return min(most, max(least, int(room)))


def _size_of(rows: int) -> int:
    return min(_SIZES_MAX, rows.bit_length())


def _fit(averages: list[_Average]) -> tuple[float, float, float]:
    """Coefficients of least relative error, none of them negative: the worst one is left out until none is."""
    used = _separable(averages)
    while True:
        solved = _solve(averages, used)
        negative = [at for at in used if solved[at] < 0]
        if not negative:
            return solved[0], solved[1], solved[2]
        used.remove(min(negative, key=lambda at: solved[at]))


def _separable(averages: list[_Average]) -> list[int]:
    """Which coefficients so many sizes of steps can tell apart; a single size is all overhead or all rows."""
    if len(averages) == 1:
        return [0] if averages[0].rows < _MANY_ROWS else [1]
    return [0, 1, 2] if len(averages) > 3 else [0, 1]


def _solve(averages: list[_Average], used: list[int]) -> list[float]:
    """Weighted least squares over the features in `used`; a trace of ridge where there are too few sizes."""
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
    """Solve a small symmetric positive system."""
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
