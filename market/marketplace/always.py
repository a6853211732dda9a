"""Identities whose records a marketplace always has room for: its own and its sellers', however many others send."""

import time
from collections.abc import Callable, Container, Set

_EVERY_S = 10.0


class Always(Container[str]):
    """The identities. `sellers`, which may block, is called again after a few seconds."""

    def __init__(self, own: Set[str], now_s: Callable[[], float] = time.monotonic) -> None:
        self.sellers: Callable[[], Set[str]] = frozenset
        self._own = own
        self._now_s = now_s
        self._known: Set[str] = frozenset()
        self._checked_s = float("-inf")

    def __contains__(self, identity: object) -> bool:
        if self._now_s() >= self._checked_s + _EVERY_S:
            self._checked_s = self._now_s()
            self._known = self.sellers()
        return identity in self._own or identity in self._known
