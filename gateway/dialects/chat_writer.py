"""The base of every dialect's writer: it reads pieces, remembers them, and ends exactly once."""

from abc import ABC, abstractmethod

from gateway.dialects.chat_reader import ANSWER_BYTES_MAX, TOO_DEEP, ChatReader
from gateway.dialects.pieces import CallPart, Piece, Said
from runtime.http.api_error import ApiError

_CUT = ApiError(502, "The backend ended in the middle of its answer.", "upstream_error", code="upstream_broke_off")
_TOO_LARGE = ApiError(
    502, f"The backend's answer is larger than {ANSWER_BYTES_MAX} bytes.", "upstream_error", code="upstream_failed"
)
# Nothing can be added to a closed block or item, and no known server does so.
MIXED_CALLS = ApiError(502, "The backend mixed the parts of several tool calls.", "upstream_error")


class ChatWriter(ABC):
    """Writes one answer, as events or whole. `broken` is its error, if any."""

    content_type: str
    keeps_calls = False

    def __init__(self, *, is_stream: bool) -> None:
        self.said = Said()
        self.broken: ApiError | None = None
        self._is_stream = is_stream
        self._is_over = False
        self._calls_begun = 0
        self._reader = ChatReader()

    def feed(self, chunk: bytes) -> bytes:
        return b"".join([self._take(piece) for piece in self._reader.feed(chunk)])

    def end(self) -> bytes:
        last = b"".join([self._take(piece) for piece in self._reader.end()])
        if self._is_over:
            return last
        if self.said.finish is None:
            return last + self.fail(_CUT)
        try:
            last += self._last_events() if self._is_stream else self._whole()
        except RecursionError:
            return last + self.fail(TOO_DEEP)
        self._is_over = True
        return last

    def fail(self, error: ApiError) -> bytes:
        if self._is_over:
            return b""
        self._is_over, self.broken = True, error
        return self._error_event(error) if self._is_stream else self._error_body(error)

    def _take(self, piece: Piece) -> bytes:
        if self._is_over:
            return b""
        if piece.error:
            return self.fail(piece.error)
        try:
            if self.said.size_bytes + piece.size_bytes > ANSWER_BYTES_MAX:
                return self.fail(_TOO_LARGE)
            # A writer gets the text before the piece, and the piece.
            written = self._events(piece) if self._is_stream else b""
        except RecursionError:
            return self.fail(TOO_DEEP)
        self.said.add(piece)
        return written

    def _begins(self, part: CallPart) -> bool:
        """Return whether this is the next call's first part; parts of earlier calls can no longer be sent."""
        if part.number < self._calls_begun:
            return False
        self._calls_begun = part.number + 1
        return True

    @abstractmethod
    def _events(self, piece: Piece) -> bytes:
        """Return the events for a piece of a stream; `said` is the text before it."""

    @abstractmethod
    def _last_events(self) -> bytes:
        """Return the end of a complete stream."""

    @abstractmethod
    def _whole(self) -> bytes:
        """Return the answer to a request that does not stream."""

    @abstractmethod
    def _error_event(self, error: ApiError) -> bytes: ...

    @abstractmethod
    def _error_body(self, error: ApiError) -> bytes: ...
