"""Keeps the forwarded bytes of a free stream, in case its backend reports no usage."""

import orjson

from gateway.lanes.choice import said_in
from runtime.sse import EVENT_BYTES_MAX, EventSplitter

# In a free stream the first events show what the others are like. Each open stream keeps this much in memory.
KEPT_BYTES_MAX = 16 * 2**10


class Kept:
    """Keeps the bytes themselves. Its owner calls `count` when there are more than KEPT_BYTES_MAX.

    Every event with text is about one token. Paid text is counted when it is sent (gateway.requests.delivery).
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        # The list's own method, because it runs for every event of every stream.
        self.add = self._chunks.append
        self._events = 0

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._chunks))

    def tokens(self) -> int:
        self.count()
        return self._events

    def count(self) -> None:
        """Count the kept bytes and drop them."""
        content = b"".join(self._chunks)
        self._chunks.clear()
        if self._events:
            # In a long stream, assume that all further events have text.
            self._events += content.count(b"\ndata:") + content.startswith(b"data:")
            return
        self._events += sum(map(_has_text, data_of(content)))


def data_of(content: bytes) -> list[bytes]:
    """Return the data of every event."""
    *events, rest = content.split(b"\n\n")
    if not rest and len(content) <= EVENT_BYTES_MAX and all(map(_is_usual, events)):
        return [event[6:] for event in events]
    splitter = EventSplitter()
    return [*splitter.feed(content), *splitter.end()]


def _is_usual(event: bytes) -> bool:
    """Return whether it is one line of data. Nearly all are, and this check takes a tenth of the time."""
    return event[:6] == b"data: " and b"\n" not in event and b"\r" not in event


def _has_text(data: bytes) -> bool:
    """Return whether an event has text in any of its choices."""
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    choices = event.get("choices") if isinstance(event, dict) else None
    return isinstance(choices, list) and any(map(said_in, choices))
