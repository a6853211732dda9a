"""A request's client for an answer sent over ASGI: it buffers the written bytes for the response."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from gateway.http.exchange import Headers
from runtime.http.api_error import ApiError

REFUSAL_BYTES_MAX = 64 * 2**10
_WAITING_BYTES_MAX = 64 * 2**10
_OK = 200
_UNKNOWN = "The backend rejected the request without giving a reason."


class Listener:
    """One event loop writes and reads. A piece counts as taken once the server's connection has room for it.

    `problem_of` renders an error. An answer with a status other than 200 is collected and becomes an error.
    """

    def __init__(self, problem_of: Callable[[ApiError], bytes]) -> None:
        self.status = 0
        self.headers: Headers = []
        self._problem_of = problem_of
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._refusal = b""
        self._is_followed = False
        self.has_ended = False
        self._is_gone = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    # Called by the request.

    def begin(self, status: int, headers: Headers, *, is_stream: bool) -> None:  # noqa: ARG002 - all are
        self.status, self.headers = status, headers
        if status == _OK:
            self._news.set()

    def write(self, data: bytes) -> None:
        if self._is_gone or not data:
            return
        if self.status != _OK:
            self._refusal = (self._refusal + data)[:REFUSAL_BYTES_MAX]
            return
        self._put(data)

    @property
    def is_full(self) -> bool:
        limit = 0 if self._is_followed else _WAITING_BYTES_MAX
        return not self._is_gone and self._waiting_bytes > limit

    async def drain(self) -> None:
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    @property
    def keeps_calls(self) -> bool:
        return False

    def follow(self) -> None:
        self._is_followed = True

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:  # noqa: ARG002 - also in the stream
        if self.status != _OK:
            self.refuse(_refusal_of(self.status, self._refusal))
            return
        self._end()

    def break_off(self, error: ApiError) -> None:
        if self.status == _OK:
            self._put(b"data: " + self._problem_of(error) + b"\n\n")
            self._end()
        else:
            self.refuse(error)

    def refuse(self, error: ApiError) -> None:
        """Send the error in place of an answer."""
        self.status = error.status
        self.headers = [(b"content-type", b"application/json"), *error.headers]
        self._put(self._problem_of(error))
        self._end()

    # Called by the response.

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield what was written; an empty first piece means that the head is ready. Ends if the client left."""
        await self._news.wait()
        if not self._is_gone:
            yield b""
        while not self._is_gone:
            self._news.clear()
            if self._pieces:
                data = b"".join(self._pieces)
                self._pieces.clear()
                yield data
                self._waiting_bytes -= len(data)
                self._room.set()
            elif self.has_ended:
                return
            else:
                await self._news.wait()

    def leave(self) -> None:
        """Note that the client has left."""
        self._is_gone = True
        self._news.set()
        self._room.set()

    def _put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        self._news.set()

    def _end(self) -> None:
        self.has_ended = True
        self._news.set()


def _refusal_of(status: int, body: bytes) -> ApiError:
    """Return a backend's own error, which other clients get unchanged."""
    try:
        error = msgspec.json.decode(body)["error"]
        message, code, param = error["message"], error.get("code"), error.get("param")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ApiError(status, _UNKNOWN, "upstream_error")
    texts = [text if isinstance(text, str) else None for text in (message, code, param)]
    return ApiError(status, texts[0] or _UNKNOWN, "upstream_error", texts[2], texts[1])
