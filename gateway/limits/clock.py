"""The wall clock that limits go by: it never goes back, and never stands still."""

import time


class SteadyClock:
    """Seconds since 1970. A clock that is set forward is followed by `correct`; one that is set back is not, for
    then seconds would come twice."""

    __slots__ = ("_ahead_s",)

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s

    def correct(self) -> None:
        self._ahead_s = max(self._ahead_s, time.time() - time.monotonic())
