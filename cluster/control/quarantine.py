"""The quarantine of machines that failed a rollout, so that one of them does not keep the others from serving."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# The pauses in seconds, by how often a machine has failed in a row.
PAUSES_S = (30.0, 120.0, 600.0, 3600.0)


@dataclass(slots=True)
class Rests:
    """The pausing machines and their deadlines. `clock` gives monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    _times: dict[str, int] = field(default_factory=dict)
    _until_s: dict[str, float] = field(default_factory=dict)

    def add(self, node_id: str) -> float:
        """Count a failure of the machine. Return how long it pauses, in seconds."""
        times = self._times.get(node_id, 0)
        pause_s = PAUSES_S[min(times, len(PAUSES_S) - 1)]
        self._times[node_id] = times + 1
        self._until_s[node_id] = self.clock() + pause_s
        return pause_s

    def end(self, node_id: str) -> None:
        """End a machine's pause and forget its failures, since it has done its part."""
        self._times.pop(node_id, None)
        self._until_s.pop(node_id, None)

    def times(self, node_id: str) -> int:
        """Return how often a machine has failed in a row."""
        return self._times.get(node_id, 0)

    def rests(self, node_id: str) -> bool:
        """Tell whether a machine pauses now."""
        return self.clock() < self._until_s.get(node_id, 0.0)

    def next_end_s(self) -> float | None:
        """Return the seconds until the next pause ends, or None if no machine pauses."""
        now_s = self.clock()
        return min((until_s - now_s for until_s in self._until_s.values() if until_s > now_s), default=None)
