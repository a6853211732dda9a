"""What a stream has delivered, kept for the case that nobody says what it used."""

import orjson

from accounting.metering import estimate
from gateway.http.events import EventSplitter
from gateway.lanes.tokens import said_in

_BYTES_MAX = 64 * 2**10


class Kept:
    """Up to a bound the bytes themselves are kept; what is past it has been counted.

    What is paid for is counted by its text, what is free by its events.
    """

    def __init__(self, is_paid: bool) -> None:
        self._is_paid = is_paid
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._events = 0
        self._tokens = 0

    @property
    def has_any(self) -> bool:
        return bool(self._chunks or self._events)

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > _BYTES_MAX:
            self._count()

    def tokens(self) -> int:
        self._count()
        return self._tokens if self._is_paid else self._events

    def _count(self) -> None:
        """Count what is kept and let it go."""
        content, self._chunks, self._size_bytes = b"".join(self._chunks), [], 0
        if not self._is_paid and self._events:
            # A long stream: that nearly all its events have text has been seen.
            self._events += content.count(b"\ndata:") + content.startswith(b"data:")
            return
        said = list(filter(None, map(_said, data_of(content))))
        self._events += len(said)
        self._tokens += estimate("".join(said)).tokens


def data_of(content: bytes) -> list[bytes]:
    """The data of every event in it."""
    splitter = EventSplitter()
    return [*splitter.feed(content), *splitter.end()]


def _said(data: bytes) -> str:
    """The text of an event, of all its choices."""
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    choices = event.get("choices") if isinstance(event, dict) else None
    return "".join(map(said_in, choices)) if isinstance(choices, list) else ""
