"""Limit the handshakes in progress at the leader's server: in total and per address. The oldest make room for new
ones.

A gateway's handshake takes milliseconds. A client that connects and stays silent only fills this list, and the
next client evicts it. So gateways get in, however many unknown clients connect.
"""

from collections import Counter
from typing import Generic, TypeVar

UNDER_WAY_MAX = 32
OF_ONE_ADDRESS_MAX = 8

Who = TypeVar("Who")


class Handshakes(Generic[Who]):
    """Handshakes in progress, the oldest first. Bounded. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._addresses: dict[Who, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, who: Who) -> bool:
        return who in self._addresses

    def enter(self, who: Who, address: str) -> Who | None:
        """Add a handshake. Return the one that has to make room for it, or None."""
        put_out = self._too_many(address)
        if put_out is not None:
            del self._addresses[put_out]
        self._addresses[who] = address
        return put_out

    def leave(self, who: Who) -> None:
        """Remove a handshake that has ended, successfully or not."""
        self._addresses.pop(who, None)

    def _too_many(self, address: str) -> Who | None:
        counts = Counter(self._addresses.values())
        if counts[address] >= OF_ONE_ADDRESS_MAX:
            return self._oldest_of(address)
        if len(self._addresses) >= UNDER_WAY_MAX:
            return self._oldest_of(counts.most_common(1)[0][0])
        return None

    def _oldest_of(self, address: str) -> Who:
        return next(who for who, each in self._addresses.items() if each == address)
