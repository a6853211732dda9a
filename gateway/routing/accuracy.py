"""The accuracy of predictions: the last errors of each backend, and their median."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Literal

from gateway.settings import LaneName

Predicted = Literal["first_token", "token", "request"]
Reported = Literal["first_token", "token"]
Report = Callable[[str, Reported, float, float], None]

_KEPT = 200
_BACKENDS_MAX = 1024


class Accuracy:
    """Bounded: the last errors of the backends that were seen first."""

    def __init__(self, report: Report | None = None) -> None:
        """`report` gets the lane, the quantity, and its predicted and measured values in seconds."""
        self._report = report
        self._errors: dict[tuple[str, Predicted], deque[tuple[float, float]]] = {}

    def add(self, label: str, lane: LaneName, kind: Predicted, predicted_s: float, seen_s: float) -> None:
        # A whole answer shows nothing about its parts.
        if self._report and kind != "request":
            self._report(lane, kind, predicted_s, seen_s)
        errors = self._errors.get((label, kind))
        if errors is None:
            if len(self._errors) >= _BACKENDS_MAX:
                return
            errors = self._errors[label, kind] = deque(maxlen=_KEPT)
        errors.append((abs(predicted_s - seen_s), seen_s))

    def summary(self) -> dict[str, dict[str, float]]:
        """Return by backend and kind: the median absolute error in seconds, and as a share of the median time."""
        found: dict[str, dict[str, float]] = {}
        for (label, kind), errors in self._errors.items():
            off_s, seen_s = median(error for error, _ in errors), median(seen for _, seen in errors)
            figures = {f"{kind}_error_s": off_s, f"{kind}_error_share": off_s / seen_s if seen_s else 0.0}
            found.setdefault(label, {}).update(figures)
        return found
