"""What the selling agent beside this gateway said last of itself, each time that it asked how idle it is here."""

from dataclasses import dataclass

SELLING = "selling"
UNREACHED = "nobody reaches this machine yet"
"""Its tunnel, or the address that buyers are told, leads nowhere for now."""

# It asks again at once, and waits a minute at most for an answer.
_SILENT_S = 150.0


@dataclass(frozen=True, slots=True)
class AgentWord:
    """`state` is why it sells nothing just now, or that it sells; `heard_s` is monotonic."""

    state: str
    heard_s: float

    def is_silent(self, now_s: float) -> bool:
        """Whether it has ended, or cannot ask any more."""
        return now_s - self.heard_s > _SILENT_S
