"""Handshakes under way at the leader's door: few at once, fewer of one address, the oldest go when more come.

A gateway's handshake takes milliseconds. Whoever connects and says nothing can fill this list and nothing else,
and is put out of it by the next who comes, so that gateways get in however many strangers there are.
"""

from collections import Counter
from typing import Generic, TypeVar

UNDER_WAY_MAX = 32
OF_ONE_ADDRESS_MAX = 8

Who = TypeVar("Who")


class Newcomers(Generic[Who]):
    """Who is shaking hands, the oldest first. Bounded; not safe for threads: its owner has a lock."""

    def __init__(self) -> None:
        self._addresses: dict[Who, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, who: Who) -> bool:
        return who in self._addresses

    def enter(self, who: Who, address: str) -> Who | None:
        """Take in another one; return who has to go for it, if anybody has."""
        put_out = self._too_many(address)
        if put_out is not None:
            del self._addresses[put_out]
        self._addresses[who] = address
        return put_out

    def leave(self, who: Who) -> None:
        """It has shaken hands, or will not any more."""
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
