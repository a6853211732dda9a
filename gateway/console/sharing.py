"""What several live pages have in common, made once for all of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Made:
    """`until_s` is on the monotonic clock."""

    value: Any
    until_s: float


class Shared:
    """Made by the first who asks, and taken for true for a moment. One event loop owns it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, _Made] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def get(self, key: str, lasts_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` gives, or gave less than `lasts_s` ago; who asks meanwhile waits for it. Raises as it does.

        `key` says all that it depends on: who may see it, too.
        """
        lock = self._making.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                known = self._made.get(key)
                if known is None or self._clock() >= known.until_s:
                    # What it is as of is when making it began.
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
