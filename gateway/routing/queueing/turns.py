"""Wait for a free slot of a backend: in a fair order, with limits on time and number."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.routing.queueing.order import FairOrder
from runtime.errors import QueueFull

WAITING_MAX = 1000
WAITING_OF_KEY_MAX = 200
CONNECTIONS_MAX = 4096
# Interval at which a waiting request checks whether another choice has become better.
LOOK_EVERY_S = 1.0
_BACKENDS_MAX = 4096

Look: TypeAlias = Callable[[int], bool]


@dataclass(slots=True)
class _Line:
    """One backend's queue: requests served, requests waiting, and how many that waited got a slot."""

    slots: int
    serving: int = 0
    called: int = 0
    waiting: FairOrder[asyncio.Future[None]] = field(default_factory=FairOrder)


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a slot: fairness is between keys, a lower priority number goes first, and waiting is limited.

    `request_s` is about how long one request keeps a slot; retry times of rejected callers are computed from it.
    """

    key: str
    priority: int
    patience_s: float
    request_s: float = 10.0


class Turns:
    """The slots of every backend. One event loop owns it.

    A backend that does not state its slots (None) has `connections_max`; none has more. `clock` gives seconds that
    never go back.
    """

    def __init__(
        self,
        waiting_max: int = WAITING_MAX,
        waiting_of_key_max: int = WAITING_OF_KEY_MAX,
        connections_max: int = CONNECTIONS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waiting_max = waiting_max
        self._waiting_of_key_max = waiting_of_key_max
        self._connections_max = connections_max
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    @property
    def all_waiting(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    def has_room(self, label: str, slots: int | None) -> bool:
        """Return whether a slot is free at once."""
        line = self._lines.get(label)
        return line is None or (line.serving < self._bounded(slots) and not len(line.waiting))

    def try_take(self, label: str, slots: int | None) -> bool:
        """Take a free slot if there is one and no request waits for it.

        The caller must give it back with `leave`.
        """
        if slots is None or slots > self._connections_max:
            slots = self._connections_max
        line = self._lines.get(label)
        if line is None:
            line = self._line(label, slots)
        if line.slots != slots:
            _resize(line, slots)
        if line.serving >= slots or line.waiting:
            return False
        line.serving += 1
        return True

    def resize(self, label: str, slots: int | None) -> None:
        """Set a backend's number of slots; additional ones go to waiting requests."""
        if line := self._lines.get(label):
            _resize(line, self._bounded(slots))

    async def take(self, label: str, slots: int | None, wish: Wish, look: Look | None = None) -> bool:
        """Wait for a slot. The caller must give it back with `leave`.

        `look` is called periodically with the approximate number of requests ahead. If it returns true, the wait
        ends without a slot and False is returned.

        Raises QueueFull at once if the queue is full, and when the patience ends.
        """
        if self.try_take(label, slots):
            return True
        line = self._lines[label]
        self._check_room(label, line, wish)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = line.waiting.ahead(wish.priority) + line.called
        until_s = self._clock() + wish.patience_s
        line.waiting.add(turn, wish.key, wish.priority, until_s)
        try:
            while (rest_s := until_s - self._clock()) > 0:
                await asyncio.wait((turn,), timeout=min(rest_s, LOOK_EVERY_S) if look else rest_s)
                if turn.done():
                    return True
                if look and look(max(0, place - line.called)):
                    return self._withdraw(line, turn, wish)
        except BaseException:
            if self._withdraw(line, turn, wish):
                self.leave(label)
            raise
        if self._withdraw(line, turn, wish):
            return True
        text = f"{label} had no free slot within {wish.patience_s:.0f} s"
        raise QueueFull(text, _come_back_s(line, wish))

    def leave(self, label: str) -> None:
        """Give a slot back; the next waiting request gets it."""
        line = self._lines[label]
        line.serving -= 1
        if line.waiting:
            _call(line)

    def _bounded(self, slots: int | None) -> int:
        return self._connections_max if slots is None else min(slots, self._connections_max)

    def _check_room(self, label: str, line: _Line, wish: Wish) -> None:
        is_full = len(line.waiting) >= self._waiting_max
        if is_full or line.waiting.of_key(wish.key) >= self._waiting_of_key_max:
            whose = "" if is_full else " for this key"
            text = f"{label} is busy, and its queue is full{whose}. Try again later."
            raise QueueFull(text, _come_back_s(line, wish))

    def _withdraw(self, line: _Line, turn: "asyncio.Future[None]", wish: Wish) -> bool:
        """Stop waiting; return True if the slot was given at this very moment."""
        return not line.waiting.remove(turn, wish.key, wish.priority) and turn.done()

    def _line(self, label: str, slots: int) -> _Line:
        if len(self._lines) >= _BACKENDS_MAX:
            # Backends come and go: unused ones are forgotten.
            self._lines = {name: line for name, line in self._lines.items() if line.serving or len(line.waiting)}
        line = self._lines[label] = _Line(slots)
        return line


def _resize(line: _Line, slots: int) -> None:
    has_more, line.slots = slots > line.slots, slots
    if has_more:
        _call(line)


def _call(line: _Line) -> None:
    """Give free slots to the next requests."""
    while line.serving < line.slots and (turn := line.waiting.pop()) is not None:
        if not turn.done():
            line.serving += 1
            line.called += 1
            turn.set_result(None)


def _come_back_s(line: _Line, wish: Wish) -> int:
    """Return in how many seconds a slot should be free for a request that comes last."""
    wait_s = (line.waiting.ahead(wish.priority) + 1) * wish.request_s / max(1, line.slots)
    return max(1, min(600, math.ceil(wait_s)))
