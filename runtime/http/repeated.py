"""The head that a connection has seen before: who sends many messages begins each alike, but for its length."""

import re
from typing import Generic, TypeVar

T = TypeVar("T")

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})(?=\r\n)", re.IGNORECASE)
_DIGITS_MAX = 9
# After this many heads without a repeat, looking for repeats is given up.
_TRIES = 8


class RepeatedHead(Generic[T]):
    """The last good head on a connection and what it came to.

    A message whose head differs from it in no byte but the length's digits means the same, and to find that out
    takes a tenth of the time that parsing does (1 us against 10).
    """

    __slots__ = ("_after", "_before", "_end_max", "_start", "_tries", "meaning")

    def __init__(self) -> None:
        self.meaning: T | None = None
        self._before = self._after = b""
        self._start = self._end_max = 0
        self._tries = _TRIES

    def body_in(self, data: bytes) -> bytes:
        """The body where `data` is this head with a whole body and nothing else; empty where it is not."""
        start, after = self._start, self._after
        if not start or not data.startswith(self._before):
            return b""
        stop = data.find(after, start, self._end_max)
        body = data[stop + len(after) :]
        if stop < 0 or data[start:stop] != b"%d" % len(body):
            return b""
        self._tries = _TRIES
        return body

    def learn(self, message: bytes, meaning: T) -> None:
        """A parser took this for one good message. One without a length, or with more behind it, is not kept."""
        if not self._tries:
            return
        self._tries -= 1
        end = message.find(_END) + len(_END)
        length = _LENGTH.search(message, 0, end)
        is_only_one = message[:end].lower().count(b"content-length") == 1
        if length and is_only_one and len(message) - end == int(length[1]):
            self._start, stop = length.span(1)
            self._before, self._after, self.meaning = message[: self._start], message[stop:end], meaning
            self._end_max = self._start + _DIGITS_MAX + end - stop
