"""A small linear model, learned online: seconds as a sum of a few known causes.

Least squares over decaying sums, regularised towards assumed rates. Each cause is scaled to seconds by its assumed
rate, so a coefficient of 1 means that the assumption was right. The assumption has the weight of `_PRIOR`
observations. Errors are relative to the prediction, because times scatter in proportion.
"""

from collections.abc import Sequence
from operator import mul

# The factor by which each new observation reduces older ones: about the last fifty count.
_KEEP = 0.98
# The assumption's weight in observations.
_PRIOR = 0.5
# An observation far above the prediction had another cause, such as a cold file or a stuck link.
_OUTLIER = 5.0
_OUTLIERS_MAX = 2
_TRUSTED_AFTER = 8
# After this number of observations, rates change slowly and are solved again only every few observations.
SETTLED = 32
_SOLVE_EVERY = 4
_LEAST_S = 0.02
_NEVER_SEEN = 1e-9
_FADE = 0.25


class Fit:
    """seconds = sum of cause x rate, with non-negative rates."""

    __slots__ = ("_moments", "_outliers", "_pairs", "_responses", "_start", "_weight", "rates", "seen")

    def __init__(self, assumed: Sequence[float]) -> None:
        """`assumed` are the rates, above zero, used until the first observation."""
        self._start = tuple(assumed)
        self.rates = list(assumed)
        size = len(assumed)
        # Flat and symmetric: the places of the upper triangle. This runs for every request.
        self._pairs = [(row, column) for row in range(size) for column in range(row, size)]
        self._moments = [0.0] * len(self._pairs)
        self._responses = [0.0] * size
        self.seen = 0
        self._outliers = 0
        self._weight = 0.0

    def predict(self, causes: Sequence[float]) -> float:
        """Return the seconds that these causes take; each cause has the unit that its rate is for."""
        return sum(map(mul, causes, self.rates), start=0.0)

    def observe(self, causes: Sequence[float], seconds: float) -> None:
        """Add one observation. It is clipped if it is far above the prediction, unless previous ones were too.

        Each cause has the unit that its rate is for.
        """
        expected = max(_LEAST_S, self.predict(causes))
        is_outlier = seconds > _OUTLIER * expected and self.seen > _TRUSTED_AFTER
        self._outliers = self._outliers + 1 if is_outlier else 0
        if is_outlier and self._outliers <= _OUTLIERS_MAX:
            seconds = _OUTLIER * expected
        # Relative to the larger one: neither a lucky guess nor a stall outweighs all others.
        scale = 1.0 / max(expected, seconds, _LEAST_S)
        scaled = [cause * rate * scale for cause, rate in zip(causes, self._start, strict=True)]
        part = seconds * scale
        self._responses = [_KEEP * old + part * value for old, value in zip(self._responses, scaled, strict=True)]
        self._moments = [
            _KEEP * old + scaled[row] * scaled[column]
            for old, (row, column) in zip(self._moments, self._pairs, strict=True)
        ]
        self.seen += 1
        self._weight = _KEEP * self._weight + 1
        if self.seen <= SETTLED or not self.seen % _SOLVE_EVERY:
            self._solve()

    def fade(self) -> None:
        """Discount old observations: each call forgets most of their weight."""
        self._weight *= _FADE
        self._responses = [_FADE * value for value in self._responses]
        self._moments = [_FADE * value for value in self._moments]
        if self._weight > 0:
            self._solve()

    def _solve(self) -> None:
        """Solve for the best rates; a cause whose rate would be negative is dropped."""
        size = len(self._start)
        whole = [[0.0] * size for _ in range(size)]
        for (row, column), value in zip(self._pairs, self._moments, strict=True):
            whole[row][column] = whole[column][row] = value
        # The prior is scaled by each cause's observations and shrinks with each one. So a prior that is far off is
        # dropped as readily as a close one. A cause that was never observed keeps its rate.
        hold = _PRIOR / self._weight**1.5
        priors = [_NEVER_SEEN + hold * whole[at][at] for at in range(size)]
        responses = [seen + prior for seen, prior in zip(self._responses, priors, strict=True)]
        for at in range(size):
            whole[at][at] += priors[at]
        active = list(range(size))
        self.rates = [0.0] * size
        while active:
            found = _eliminate([[*(whole[row][at] for at in active), responses[row]] for row in active])
            if min(found) >= 0:
                for at, share in zip(active, found, strict=True):
                    self.rates[at] = share * self._start[at]
                return
            active.pop(found.index(min(found)))


def _eliminate(matrix: list[list[float]]) -> list[float]:
    """Solve a small positive definite system, given with its right side as the last column."""
    size = len(matrix)
    for pivot in range(size):
        head = matrix[pivot]
        for row in range(pivot + 1, size):
            share = matrix[row][pivot] / head[pivot]
            for column in range(pivot, size + 1):
                matrix[row][column] -= share * head[column]
    found = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = matrix[row][size] - sum(matrix[row][column] * found[column] for column in range(row + 1, size))
        found[row] = rest / matrix[row][row]
    return found
