"""What a stream has delivered, kept for the case that nobody says what it used."""

import orjson

from accounting.metering.counts import estimate
from gateway.http.events import EVENT_BYTES_MAX, EventSplitter
from gateway.lanes.tokens import said_in

# Of what is free the first events say what the others are like; every stream under way has so much in memory.
_FREE_BYTES_MAX = 16 * 2**10
_PAID_BYTES_MAX = 64 * 2**10


class Kept:
    """Up to a bound the bytes themselves are kept; what is past it has been counted.

    What is paid for is counted by its text, what is free by its events.
    """

    def __init__(self, is_paid: bool) -> None:
        self._is_paid = is_paid
        self._bytes_max = _PAID_BYTES_MAX if is_paid else _FREE_BYTES_MAX
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._events = 0
        self._tokens = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > self._bytes_max:
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
    *events, rest = content.split(b"\n\n")
    if not rest and len(content) <= EVENT_BYTES_MAX and all(map(_is_usual, events)):
        return [event[6:] for event in events]
    splitter = EventSplitter()
    return [*splitter.feed(content), *splitter.end()]


def _is_usual(event: bytes) -> bool:
    """Whether it is one line of data, as nearly all are: that is found out in a tenth of the time."""
    return event[:6] == b"data: " and b"\n" not in event and b"\r" not in event


def _said(data: bytes) -> str:
    """The text of an event, of all its choices."""
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    choices = event.get("choices") if isinstance(event, dict) else None
    return "".join(map(said_in, choices)) if isinstance(choices, list) else ""
