"""The order of waiting requests: priority bands, fairness between keys, deadlines within a key. Pure.

Keys take turns by virtual time, as in start-time fair queueing (Goyal, Vin and Cheng 1996). Every entry served
moves its key's clock on by one, and the key whose clock is furthest behind is next. A key that had nothing waiting
starts at the band's current time, or at its own clock if that is later. So a key cannot save up turns; and while
any entry waits in the band, a key cannot get ahead by leaving and coming back. An empty band forgets all clocks.

The user of this module bounds the number of entries.
"""

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_Waiting = tuple[float, int, T]


@dataclass(slots=True)
class _Key(Generic[T]):
    """One key's entries, earliest deadline first, and its next turn in virtual time."""

    turn: float
    waiting: list[_Waiting[T]] = field(default_factory=list)


@dataclass(slots=True)
class _Band(Generic[T]):
    """The keys of one priority. `served` is the virtual time: the turn given last."""

    served: float = 0.0
    keys: dict[str, _Key[T]] = field(default_factory=dict)
    size: int = 0


class FairOrder(Generic[T]):
    """Entries with key, priority and deadline; `pop` returns the next.

    Cost grows with the number of waiting keys.
    """

    def __init__(self) -> None:
        self._bands: dict[int, _Band[T]] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._bands)

    def __len__(self) -> int:
        return sum(band.size for band in self._bands.values())

    def ahead(self, priority: int) -> int:
        """Return how many entries wait in this band and in those before it."""
        return sum(band.size for number, band in self._bands.items() if number <= priority)

    def of_key(self, key: str) -> int:
        """Return how many entries of a key wait, in all bands."""
        return sum(len(band.keys[key].waiting) for band in self._bands.values() if key in band.keys)

    def add(self, entry: T, key: str, priority: int, deadline_s: float) -> None:
        """Add an entry; a lower `priority` number goes first."""
        band = self._bands.setdefault(priority, _Band())
        found = band.keys.setdefault(key, _Key(band.served))
        if not found.waiting:
            found.turn = max(found.turn, band.served)
        heapq.heappush(found.waiting, (deadline_s, next(self._numbers), entry))
        band.size += 1

    def pop(self) -> T | None:
        """Remove and return the next entry; None if none waits."""
        if not self._bands:
            return None
        priority = min(self._bands)
        band = self._bands[priority]
        key = min((key for key in band.keys.values() if key.waiting), key=lambda key: key.turn)
        _, _, entry = heapq.heappop(key.waiting)
        band.served = key.turn
        key.turn += 1.0
        self._took_one(priority, band)
        return entry

    def remove(self, entry: T, key: str, priority: int) -> bool:
        """Remove a waiting entry; return False if it was not waiting."""
        band = self._bands.get(priority)
        found = band.keys.get(key) if band else None
        if band is None or found is None:
            return False
        rest = [waiting for waiting in found.waiting if waiting[2] is not entry]
        if len(rest) == len(found.waiting):
            return False
        heapq.heapify(rest)
        found.waiting = rest
        self._took_one(priority, band)
        return True

    def _took_one(self, priority: int, band: _Band[T]) -> None:
        band.size -= 1
        if not band.size:
            del self._bands[priority]
            return
        # A clock that is not ahead has no effect any more.
        over = [name for name, key in band.keys.items() if not key.waiting and key.turn <= band.served]
        for name in over:
            del band.keys[name]
