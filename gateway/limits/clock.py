"""The wall clock for limits: it never goes back, and never stops."""

import time


class SteadyClock:
    """Seconds since 1970.

    `correct` follows a system clock that is set forward, but not back, because seconds would repeat.
    """

    __slots__ = ("_ahead_s",)

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s

    def correct(self) -> None:
        self._ahead_s = max(self._ahead_s, time.time() - time.monotonic())
