"""Limits the number of requests in flight."""

import time

from runtime.errors import Overloaded


class Admission:
    """Counts requests in flight other than preemptible requests'; one event loop owns it."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self.in_flight = 0
        self.empty_since_s = time.monotonic()
        """Monotonic seconds since when no request is in flight; valid only while there is none."""

    def enter(self) -> None:
        """Count a request in; every `enter` needs a `leave`. Raises Overloaded."""
        if self.in_flight >= self._requests_max:
            raise Overloaded(f"The gateway is answering {self.in_flight} requests, its limit. Try again shortly.")
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.empty_since_s = time.monotonic()
