"""The records of answers across backends: their lengths, and the accuracy of predictions."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from statistics import median
from typing import Literal, TypeVar

from msgspec import Struct

from gateway.routing.prefixes import PrefixIndex
from gateway.settings import LaneName

Predicted = Literal["first_token", "token", "request"]
Reported = Literal["first_token", "token"]
Report = Callable[[str, Reported, float, float], None]

# The errors kept for each backend, and the number of backends.
_KEPT = 200
_BACKENDS_MAX = 1024

# The assumed length before the first answer.
USUAL_TOKENS = 256
# The share of answers that are at most as long as expected. It is above one half, because long answers cost more.
_SHARE = 0.6
_STEP = 0.08
_FIRST_STEP = 0.5
_REMEMBERED = 4096
_LEAST = 1.0
_MOST = 100_000.0

Name = TypeVar("Name", bound=Hashable)


class Memory(Struct, frozen=True):
    """The shared records of answers across backends."""

    accuracy: "Accuracy"
    lengths: "OutputLengths"
    prefixes: PrefixIndex


class Accuracy:
    """The last errors of predictions by backend. Bounded: only the backends that were seen first have them."""

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


class OutputLengths:
    """Expected answer lengths by key and model: a moving quantile, because limits are high and rarely reached.

    Bounded: the least recently seen pairs are dropped first.
    """

    def __init__(self) -> None:
        self._by_pair: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._by_model: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def expected(self, key_id: str, model: str, limit: int | None) -> int:
        """Return the expected number of tokens of an answer, within the request's limit."""
        found = self._by_pair.get((key_id, model)) or self._by_model.get(model)
        tokens = int(found[0]) if found else USUAL_TOKENS
        return tokens if limit is None or tokens < limit else limit

    def observe(self, key_id: str, model: str, tokens: int) -> None:
        if tokens > 0:
            _learn(self._by_pair, (key_id, model), tokens)
            _learn(self._by_model, model, tokens)


def _learn(known: OrderedDict[Name, tuple[float, int]], name: Name, tokens: int) -> None:
    quantile, count = known.get(name, (float(tokens), 0))
    # Multiply instead of adding, so that a step means the same for short and long answers.
    step = max(_STEP, _FIRST_STEP / (1 + count))
    quantile *= 1 + step * _SHARE if tokens > quantile else 1 - step * (1 - _SHARE) if tokens < quantile else 1
    known[name] = min(_MOST, max(_LEAST, quantile)), count + 1
    known.move_to_end(name)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
