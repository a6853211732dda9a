"""Leave out sellers that do far worse than their peers now. A bad connection of our own then trips none of them.

A seller alone on a model has no peers; it is left out when nearly all its requests fail.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW_S = 30.0
_OUTCOMES_MAX = 512
_OUTCOMES_MIN = 5
_WORSE_BY = 0.3
_SLOWER_TIMES = 4.0
_SLOW_S = 2.0
_FAILING_ALONE = 0.9


@dataclass(frozen=True, slots=True)
class Signal:
    """Half a minute of results: requests, the share that failed, and the median time to first token in seconds."""

    requests: int = 0
    failing: float = 0.0
    ttft_s: float | None = None


@dataclass(slots=True)
class Recent:
    """A seller's outcomes of the last half minute, at most 512 of them."""

    _outcomes: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=_OUTCOMES_MAX))

    def add(self, now_s: float, ttft_s: float | None) -> None:
        """Add an answer, with the seconds until it began, or a failure: None."""
        self._outcomes.append((now_s, ttft_s))

    def signal(self, now_s: float) -> Signal:
        while self._outcomes and self._outcomes[0][0] <= now_s - WINDOW_S:
            self._outcomes.popleft()
        requests = len(self._outcomes)
        began = [ttft_s for _, ttft_s in self._outcomes if ttft_s is not None]
        failing = (requests - len(began)) / requests if requests else 0.0
        return Signal(requests, failing, median(began) if began else None)


def is_tripped(own: Signal, peers: Sequence[Signal]) -> bool:
    """Return whether a seller is left out for now. `peers` has a signal of every other owner on this model."""
    if own.requests < _OUTCOMES_MIN:
        return False
    known = [peer for peer in peers if peer.requests]
    if not known:
        return own.failing >= _FAILING_ALONE
    if own.failing > median(peer.failing for peer in known) + _WORSE_BY:
        return True
    begun = [peer.ttft_s for peer in known if peer.ttft_s is not None]
    if own.ttft_s is None or not begun:
        return False
    return own.ttft_s > max(_SLOW_S, _SLOWER_TIMES * median(begun))
