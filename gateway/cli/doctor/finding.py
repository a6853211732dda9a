"""One finding of the doctor: the state, and its remedy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail", "unseen"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is empty if all is well. `mend` fixes the problem and says what it did; it may raise OSError."""

    area: str
    level: Level
    what: str
    remedy: str = ""
    mend: Callable[[], str] | None = None


def ok(area: str, what: str) -> Finding:
    return Finding(area, "ok", what)


def warn(area: str, what: str, remedy: str, mend: Callable[[], str] | None = None) -> Finding:
    return Finding(area, "warn", what, remedy, mend)


def fail(area: str, what: str, remedy: str, mend: Callable[[], str] | None = None) -> Finding:
    return Finding(area, "fail", what, remedy, mend)


def unseen(area: str, what: str, remedy: str) -> Finding:
    """A finding for something that could not be checked, with what it would take."""
    return Finding(area, "unseen", what, remedy)
