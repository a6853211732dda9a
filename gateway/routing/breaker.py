"""A circuit breaker: a backend that keeps failing gets a pause, then one request at a time to show it is well.

closed --failures in a row--> open --pause over--> half open --one trial--> closed, or open for twice as long
"""

from dataclasses import dataclass
from typing import Literal

BREAK_AFTER = 3
_PAUSE_S = 5.0
_PAUSE_MAX_S = 60.0
# The longest that a backend's own word on when to come back is believed.
_ASKED_PAUSE_MAX_S = 600.0
# Between being chosen for the trial and beginning it; and from when on a trial without a sign of life is void.
_CLAIM_S = 1.0
_TRIAL_S = 30.0

BreakerState = Literal["closed", "open", "half_open", "trial"]


@dataclass(slots=True)
class Breaker:
    """One backend's. Times are those of the clock that the caller reads."""

    failures_in_row: int = 0
    closed_until_s: float = 0.0
    asked_until_s: float = 0.0
    trial_until_s: float = 0.0

    def state(self, now_s: float) -> BreakerState:
        if now_s < self.asked_until_s:
            return "open"
        if self.failures_in_row < BREAK_AFTER:
            return "closed"
        if now_s < self.closed_until_s:
            return "open"
        return "trial" if now_s < self.trial_until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        """Whether a request may go there."""
        if not self.failures_in_row and not self.asked_until_s:
            return True
        return self.state(now_s) in ("closed", "half_open")

    def claim(self, now_s: float) -> None:
        """A request was chosen for the trial: for a moment nobody else is."""
        if self.state(now_s) == "half_open":
            self.trial_until_s = now_s + _CLAIM_S

    def began(self, now_s: float) -> None:
        if self.failures_in_row >= BREAK_AFTER:
            self.trial_until_s = now_s + _TRIAL_S

    def succeeded(self) -> None:
        if self.failures_in_row or self.asked_until_s:
            self.failures_in_row = 0
            self.trial_until_s = self.asked_until_s = 0.0

    def failed(self, now_s: float, retry_after_s: float | None = None) -> None:
        """`retry_after_s` is the backend's own word, where it said one."""
        self.failures_in_row += 1
        self.trial_until_s = 0.0
        if self.failures_in_row >= BREAK_AFTER:
            doublings = min(8, self.failures_in_row - BREAK_AFTER)
            self.closed_until_s = now_s + min(_PAUSE_MAX_S, _PAUSE_S * 2**doublings)
        self.paused(now_s, retry_after_s)

    def paused(self, now_s: float, retry_after_s: float | None) -> None:
        """It is well and asks to be left alone for so long."""
        if retry_after_s and retry_after_s > 0:
            until_s = now_s + min(_ASKED_PAUSE_MAX_S, retry_after_s)
            self.asked_until_s = max(self.asked_until_s, until_s)

    def left(self) -> None:
        """The trial ended without a verdict: the next one may try."""
        self.trial_until_s = 0.0
