"""Values that several live pages share, computed once for all of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Made:
    """A computed value; `until_s` is on the monotonic clock."""

    value: Any
    until_s: float


class Shared:
    """Values computed on first request and reused for a moment. Belongs to one event loop.

    `clock` gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, _Made] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def get(self, key: str, lasts_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` returns or returned less than `lasts_s` ago; other callers wait. Raises as it does.

        `key` must cover everything the value depends on, including who may see it.
        """
        lock = self._making.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                known = self._made.get(key)
                if known is None or self._clock() >= known.until_s:
                    # The value's age counts from the moment when computing it began.
                    until_s = self._clock() + lasts_s
                    known = _Made(await make(), until_s)
                    self._forget()
                    self._made[key] = known
        finally:
            if not lock.locked():
                self._making.pop(key, None)
        value: T = known.value
        return value

    def _forget(self) -> None:
        now_s = self._clock()
        self._made = {key: made for key, made in self._made.items() if made.until_s > now_s}
