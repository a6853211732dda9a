"""How each backend has been doing: moving averages in seconds, requests under way, a circuit breaker."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# The weight of the newest observation: about the last twenty count.
_ALPHA = 0.1
_BREAK_AFTER = 3
_PAUSE_S = 5.0
_PAUSE_MAX_S = 60.0


@dataclass(slots=True)
class Health:
    """One backend's record. Times are None until one was seen."""

    in_flight: int = 0
    first_token_s: float | None = None
    token_s: float | None = None
    request_s: float | None = None
    failure_share: float = 0.0
    failures_in_row: int = 0
    closed_until_s: float = 0.0
    trial_running: bool = False

    def is_open(self, now_s: float) -> bool:
        """Whether requests may go there: a broken backend gets a pause, then one trial at a time."""
        if self.failures_in_row < _BREAK_AFTER:
            return True
        return now_s >= self.closed_until_s and not self.trial_running


@dataclass(slots=True)
class LaneHealth:
    """Records by backend label; one event loop writes them."""

    clock: Callable[[], float] = time.monotonic
    _records: dict[str, Health] = field(default_factory=dict)

    def of(self, label: str) -> Health:
        return self._records.setdefault(label, Health())

    def labels(self) -> list[str]:
        return list(self._records)

    def now_s(self) -> float:
        return self.clock()

    def began(self, label: str) -> None:
        health = self.of(label)
        health.in_flight += 1
        if health.failures_in_row >= _BREAK_AFTER:
            health.trial_running = True

    def succeeded(self, label: str, first_token_s: float | None, duration_s: float, tokens: int) -> None:
        health = self.of(label)
        self._ended(health)
        health.failures_in_row = 0
        health.failure_share *= 1 - _ALPHA
        health.request_s = _average(health.request_s, duration_s)
        if first_token_s is not None:
            health.first_token_s = _average(health.first_token_s, first_token_s)
            if tokens > 1:
                health.token_s = _average(health.token_s, (duration_s - first_token_s) / (tokens - 1))

    def failed(self, label: str) -> None:
        health = self.of(label)
        self._ended(health)
        health.failures_in_row += 1
        health.failure_share += _ALPHA * (1 - health.failure_share)
        if health.failures_in_row >= _BREAK_AFTER:
            pause_s = min(_PAUSE_MAX_S, _PAUSE_S * 2 ** (health.failures_in_row - _BREAK_AFTER))
            health.closed_until_s = self.clock() + pause_s

    def left(self, label: str) -> None:
        """The caller hung up, or the backend was only busy: no verdict on it."""
        self._ended(self.of(label))

    def _ended(self, health: Health) -> None:
        health.in_flight = max(0, health.in_flight - 1)
        health.trial_running = False


def _average(before: float | None, seen: float) -> float:
    return seen if before is None else before + _ALPHA * (seen - before)
