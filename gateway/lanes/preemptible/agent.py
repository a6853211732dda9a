"""The last state reported by the selling agent beside this gateway, each time it queried the idle state."""

from dataclasses import dataclass

# The agent asks again immediately, and waits at most a minute for an answer.
_SILENT_S = 150.0


@dataclass(frozen=True, slots=True)
class AgentWord:
    """`state` says why it sells nothing now, or that it sells; `heard_s` is on the monotonic clock."""

    state: str
    heard_s: float

    def is_silent(self, now_s: float) -> bool:
        """Return whether the agent has stopped, or cannot reach us."""
        return now_s - self.heard_s > _SILENT_S
