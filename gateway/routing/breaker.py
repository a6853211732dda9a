"""A circuit breaker: a backend that keeps failing gets a pause, then one trial request at a time.

closed --failures in a row--> open --pause over--> half open --one trial--> closed, or open for twice as long

Each model of a backend has its own breaker, because a failure or rate limit of one model does not concern the
others. Only an unreachable backend is paused with all of its models.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

BREAK_AFTER = 3
_PAUSE_S = 5.0
_PAUSE_MAX_S = 60.0
# The longest pause that a backend's own retry time may set, in seconds.
_ASKED_PAUSE_MAX_S = 600.0
# The first pause of a backend without room that gives no retry time; it doubles up to _PAUSE_MAX_S.
_UNTOLD_PAUSE_S = 1.0
# A backend with many models keeps the breakers of those that failed last.
_MODELS_MAX = 64
# The time between being chosen for the trial and beginning it, and the time after which a silent trial is void.
_CLAIM_S = 1.0
_TRIAL_S = 30.0

BreakerState = Literal["closed", "open", "half_open", "trial"]


@dataclass(slots=True)
class Breaker:
    """The breaker of a backend, or of one model there. Times are on the caller's clock.

    Until `asked_until_s` the backend asked for a pause, with 429 if `is_limit`, otherwise with 503.
    """

    failures_in_row: int = 0
    closed_until_s: float = 0.0
    asked_until_s: float = 0.0
    trial_until_s: float = 0.0
    failed_s: float = 0.0
    """The time of the last failure."""
    is_limit: bool = False
    _asked_in_row: int = 0

    def state(self, now_s: float) -> BreakerState:
        if now_s < self.asked_until_s:
            return "open"
        if self.failures_in_row < BREAK_AFTER:
            return "closed"
        if now_s < self.closed_until_s:
            return "open"
        return "trial" if now_s < self.trial_until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        """Return whether a request may go there."""
        if not self.failures_in_row and not self.asked_until_s:
            return True
        return self.state(now_s) in ("closed", "half_open")

    def claim(self, now_s: float) -> None:
        """Note that a request was chosen for the trial. For a short time no other request is."""
        if self.state(now_s) == "half_open":
            self.trial_until_s = now_s + _CLAIM_S

    def began(self, now_s: float) -> None:
        if self.failures_in_row >= BREAK_AFTER:
            self.trial_until_s = now_s + _TRIAL_S

    def succeeded(self) -> None:
        """Note a success. A requested pause continues, because this answer began before it."""
        self.failures_in_row = self._asked_in_row = 0
        self.trial_until_s = 0.0

    def failed(self, now_s: float) -> None:
        self.failures_in_row += 1
        self.failed_s = now_s
        self.trial_until_s = 0.0
        if self.failures_in_row >= BREAK_AFTER:
            doublings = min(8, self.failures_in_row - BREAK_AFTER)
            self.closed_until_s = now_s + min(_PAUSE_MAX_S, _PAUSE_S * 2**doublings)

    def asked(self, now_s: float, retry_after_s: float | None, *, is_limit: bool) -> None:
        """Note that a healthy backend asked for a pause of `retry_after_s`.

        Without a time, consecutive pauses grow.
        """
        if now_s >= self.asked_until_s:
            self._asked_in_row += 1
        doublings = min(8, max(0, self._asked_in_row - 1))
        pause_s = retry_after_s or min(_PAUSE_MAX_S, _UNTOLD_PAUSE_S * 2**doublings)
        until_s = now_s + min(_ASKED_PAUSE_MAX_S, pause_s)
        if until_s > self.asked_until_s:
            self.asked_until_s, self.is_limit = until_s, is_limit

    def left(self) -> None:
        """Note that the trial ended without a verdict; the next request may try."""
        self.trial_until_s = 0.0


@dataclass(slots=True)
class Breakers:
    """A backend's own breaker, and those of its recently failed models, by their names there."""

    backend: Breaker = field(default_factory=Breaker)
    are_clear: bool = True
    """Whether no failure and no pause counts, as for nearly every request: then there is no trial either."""
    _models: OrderedDict[str, Breaker] = field(default_factory=OrderedDict)

    def of(self, model: str) -> Breaker:
        """Return a failed model's breaker; an unused one for all others."""
        return self._models.get(model) or Breaker()

    def barring(self, model: str, now_s: float) -> Breaker | None:
        """Return the breaker that blocks requests for this model now, if any."""
        for one in self._marked(model):
            if not one.admits(now_s):
                return one
        return None

    def claim(self, model: str, now_s: float) -> None:
        for one in self._marked(model):
            one.claim(now_s)

    def began(self, model: str, now_s: float) -> None:
        for one in self._marked(model):
            one.began(now_s)

    def succeeded(self, model: str, now_s: float) -> None:
        for one in self._marked(model):
            one.succeeded()
            if one is not self.backend and one.admits(now_s):
                del self._models[model]
        self._check()

    def left(self, model: str) -> None:
        for one in self._marked(model):
            one.left()

    def failed(self, model: str, now_s: float) -> None:
        self._model(model).failed(now_s)
        self._check()

    def unreachable(self, now_s: float) -> None:
        self.backend.failed(now_s)
        self._check()

    def asked(self, model: str, now_s: float, retry_after_s: float | None, *, is_limit: bool) -> None:
        self._model(model).asked(now_s, retry_after_s, is_limit=is_limit)
        self._check()

    def failed_s(self, model: str) -> float:
        """Return when a request for this model last failed or could not reach the backend; 0.0 if never."""
        return max(self.backend.failed_s, self.of(model).failed_s)

    def answered(self, *, was_down: bool) -> None:
        """Note a probe's answer: connections are possible. Pauses that the backend asked for continue.

        If it was down, its models' failures belong to an earlier process.
        """
        for one in (self.backend, *(self._models.values() if was_down else ())):
            one.failures_in_row, one.trial_until_s = 0, 0.0
        self._check()

    def _marked(self, model: str) -> tuple[Breaker, ...]:
        """Return the breakers of the backend and of its model; none if all are clear."""
        if self.are_clear:
            return ()
        found = self._models.get(model)
        return (self.backend,) if found is None else (self.backend, found)

    def _check(self) -> None:
        self.are_clear = not (self._models or self.backend.failures_in_row or self.backend.asked_until_s)

    def _model(self, model: str) -> Breaker:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = Breaker()
            if len(self._models) > _MODELS_MAX:
                self._models.popitem(last=False)
        return found
