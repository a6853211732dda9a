"""A stored answer, and the store in this process: bounded in number, bytes and time."""

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it was sent, with its token counts. Only complete answers of status 200 are stored."""

    content_type: str
    body: bytes
    prompt_tokens: int
    completion_tokens: int


class AnswerStore:
    """The most recently used answers. One event loop owns it. `clock` gives seconds that never go back."""

    def __init__(
        self, entries_max: int, bytes_max: int, lasts_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._lasts_s = lasts_s
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[StoredAnswer, float]] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: bytes) -> StoredAnswer | None:
        found = self._kept.get(key)
        if found is None:
            return None
        answer, until_s = found
        if self._clock() >= until_s:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: StoredAnswer) -> None:
        """Store an answer; the least recently used make room.

        An answer larger than the whole store is not stored.
        """
        if len(answer.body) > self._bytes_max:
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = answer, self._clock() + self._lasts_s
        self.size_bytes += len(answer.body)
        while len(self._kept) > self._entries_max or self.size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        answer, _ = self._kept.pop(key)
        self.size_bytes -= len(answer.body)
