"""The keys that requests are sealed for: in memory only, new every hour, the old one kept while it may be used."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from market.sealing.agreement import SealingKey
from market.sealing.seen import Seen

KEY_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Seal:
    """A sealing key with the requests that were opened with it; `made_s` by a clock that only goes forward."""

    made_s: float
    key: SealingKey = field(default_factory=SealingKey)
    seen: Seen = field(default_factory=Seen)


class Seals:
    """The seal that new listings name. Listings that still hold keep theirs: the rest is forgotten for good."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._current = Seal(monotonic())

    def current(self) -> Seal:
        """The newest seal, made anew where it is an hour old or nearly full: then listings need a new revision."""
        if self.is_worn:
            self._current = Seal(self._monotonic())
        return self._current

    @property
    def is_worn(self) -> bool:
        return self._current.seen.is_nearly_full or self._monotonic() - self._current.made_s >= KEY_S
