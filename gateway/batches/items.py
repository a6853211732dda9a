"""The remaining requests of a batch, in file order; retries come when they are due."""

import heapq
from collections import deque
from collections.abc import Container
from pathlib import Path

from gateway.batches.lines import Item, raw_lines, read_line

_PORTION_ITEMS = 32
_PORTION_BYTES = 2**20


class Items:
    """`refill` reads the disk: call it off the event loop, and nothing else meanwhile."""

    def __init__(self, path: Path, body_bytes_max: int, done: Container[int]) -> None:
        self._body_bytes_max = body_bytes_max
        self._done = done
        self._lines = raw_lines(path, body_bytes_max)
        self._waiting: deque[Item] = deque()
        self._again: list[tuple[float, int, Item]] = []
        self._is_read = False

    @property
    def is_dry(self) -> bool:
        """Return whether `refill` may find more."""
        return not self._waiting and not self._is_read

    @property
    def is_spent(self) -> bool:
        return self._is_read and not self._waiting and not self._again

    def refill(self) -> None:
        size_bytes = 0
        while len(self._waiting) < _PORTION_ITEMS and size_bytes < _PORTION_BYTES:
            found = next(self._lines, None)
            if found is None:
                self._is_read = True
                return
            line, raw = found
            if line not in self._done:
                self._waiting.append(read_line(line, raw, self._body_bytes_max)[0])
                size_bytes += len(raw)

    def peek(self, now_s: float) -> Item | None:
        """Return the next request to ask; None if there is none yet, or no more."""
        if self._again and self._again[0][0] <= now_s:
            return self._again[0][2]
        return self._waiting[0] if self._waiting else None

    def take(self, item: Item) -> None:
        """Note that the item returned by `peek` is being asked."""
        if self._waiting and self._waiting[0] is item:
            self._waiting.popleft()
        else:
            heapq.heappop(self._again)

    def put_back(self, item: Item, due_s: float) -> None:
        heapq.heappush(self._again, (due_s, item.line, item))

    def close(self) -> None:
        self._lines.close()
