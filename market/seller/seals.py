"""The keys that requests are sealed for: in memory only, replaced hourly, kept while still usable."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from market.protocol.sealing.agreement import SealingKey
from market.protocol.sealing.seen import Seen

KEY_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Seal:
    """A sealing key and the requests opened with it; `made_s` is on a monotonic clock."""

    made_s: float
    key: SealingKey = field(default_factory=SealingKey)
    seen: Seen = field(default_factory=Seen)


class Seals:
    """The seal for new listings. Valid listings keep their seals; others are forgotten.

    `monotonic` gives seconds that never go back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._current = Seal(monotonic())

    def current(self) -> Seal:
        """Return the newest seal, replacing it if it is an hour old or nearly full; listings then need a new
        revision.
        """
        if self.is_worn:
            self._current = Seal(self._monotonic())
        return self._current

    @property
    def is_worn(self) -> bool:
        return self._current.seen.is_nearly_full or self._monotonic() - self._current.made_s >= KEY_S
