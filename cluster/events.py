"""Recent events of the cluster, for admins: machines that came and went; epochs that began, served and broke."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

EVENTS_MAX = 200

EventKind = Literal[
    "joined",
    "lost",
    "removed",
    "drained",
    "undrained",
    "renamed",
    "plan",
    "loading",
    "ready",
    "draining",
    "unloaded",
    "broken",
    "failed",
]


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One event. `at_s` is in seconds since 1970; `epoch` is 0 if it belongs to none."""

    at_s: float
    kind: EventKind
    text: str
    epoch: int = 0


@dataclass(slots=True)
class Chronicle:
    """The newest EVENTS_MAX events of this run, in memory. `clock` gives seconds since 1970."""

    clock: Callable[[], float] = time.time
    _events: deque[ClusterEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))

    def note(self, kind: EventKind, text: str, epoch: int = 0) -> None:
        self._events.append(ClusterEvent(self.clock(), kind, text, epoch))

    def newest(self, limit: int = EVENTS_MAX) -> list[ClusterEvent]:
        """Return up to `limit` events, newest first."""
        return list(reversed(self._events))[:limit]
