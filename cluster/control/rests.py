"""Machines that failed a rollout rest a while, so that one does not keep the others from serving."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# How long, by how often it has failed in a row.
PAUSES_S = (30.0, 120.0, 600.0, 3600.0)


@dataclass(slots=True)
class Rests:
    """Who rests until when. `clock` gives monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    _times: dict[str, int] = field(default_factory=dict)
    _until_s: dict[str, float] = field(default_factory=dict)

    def add(self, node_id: str) -> float:
        """The machine has failed once more; returns how long it rests, in seconds."""
        times = self._times.get(node_id, 0)
        pause_s = PAUSES_S[min(times, len(PAUSES_S) - 1)]
        self._times[node_id] = times + 1
        self._until_s[node_id] = self.clock() + pause_s
        return pause_s

    def end(self, node_id: str) -> None:
        """The machine has done its part: what it failed before is forgotten."""
        self._times.pop(node_id, None)
        self._until_s.pop(node_id, None)

    def times(self, node_id: str) -> int:
        """How often it has failed in a row."""
        return self._times.get(node_id, 0)

    def rests(self, node_id: str) -> bool:
        return self.clock() < self._until_s.get(node_id, 0.0)

    def next_end_s(self) -> float | None:
        """Seconds until the next machine has rested, None when nobody rests."""
        now_s = self.clock()
        return min((until_s - now_s for until_s in self._until_s.values() if until_s > now_s), default=None)
