"""How long a model takes to load: as measured, otherwise estimated from its size."""

from dataclasses import dataclass, field

from gateway.lanes.pool.report import MODELS_MAX, ModelReport

# Assumes a plain SSD and its overhead; a measured load replaces this.
_BYTES_PER_S = 1_000_000_000
_AROUND_S = 2.0
_UNKNOWN_S = 10.0
# The newest measurement has half of the weight, because load times depend on the machine's current work.
_ALPHA = 0.5
_S_MAX = 3600.0


@dataclass(slots=True)
class LoadTimes:
    """Load times of one backend's models, in seconds."""

    _seen_s: dict[str, float] = field(default_factory=dict)

    def saw(self, model: str, seconds: float) -> None:
        """Record the time to the first byte of a request to a model that was not loaded."""
        seconds = min(seconds, _S_MAX)
        before = self._seen_s.get(model)
        if before is not None:
            seconds = before + _ALPHA * (seconds - before)
        elif len(self._seen_s) >= MODELS_MAX:
            return
        self._seen_s[model] = seconds

    def expected_s(self, model: ModelReport) -> float:
        if model.is_resident:
            return 0.0
        if (seen := self._seen_s.get(model.name)) is not None:
            return seen
        return _AROUND_S + model.load_bytes / _BYTES_PER_S if model.load_bytes else _UNKNOWN_S
