"""One request on a hot route and its answer, on a connection."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.dialects.base import Route
from gateway.errors import to_api_error
from gateway.identity.caller import Caller
from runtime.http.api_error import ApiError
from runtime.request_ids import HEADER, new_request_id

if TYPE_CHECKING:
    from gateway.http.hot import HotProtocol

Headers = list[tuple[bytes, bytes]]

# Up to this size, an answer that is not a stream is sent at once, with its length.
COLLECTED_BYTES_MAX = 2**20
# From this size, data goes to the kernel without a copy.
_LARGE_BYTES = 64 * 2**10
# A proxy that buffered a stream would deliver all events at its end.
_STREAM_HEADERS = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class Exchange:
    """Takes a request's body, then an answer: `begin`, writes, and `finish` or `break_off`; or `refuse` alone.

    It replaces uvicorn's cycles on its connection, and has the attributes that the rest of the protocol reads.
    """

    message_event = asyncio.Event()  # set by uvicorn when a connection is lost; unused here

    # Initial values; class attributes, because one exchange is made for every request.
    caller: Caller | None = None
    problem: Exception | None = None
    is_whole = False
    expects_word = False
    traceparent = b""
    address = ""
    task: asyncio.Task[None] | None = None
    disconnected = False
    response_complete = False
    is_stream = False
    _taken_bytes = 0
    _status = 200
    _parts_bytes = 0
    _has_begun = False
    _has_sent = False
    _is_followed = False
    _send: Callable[[bytes], None]
    """The transport's own method, once the head of an answer in parts is sent."""

    def __init__(self, protocol: "HotProtocol", route: Route, *, keep_alive: bool, is_chunkable: bool) -> None:
        self.id = new_request_id()
        self.route = route
        self.keep_alive = keep_alive
        self._protocol = protocol
        self._is_chunkable = is_chunkable
        self._taken: list[bytes] = []
        self._headers: Headers = []
        self._parts: list[bytes] = []

    # The request.

    def take(self, data: bytes) -> int:
        """Take the next bytes of the body; return the number of bytes so far."""
        self._taken.append(data)
        self._taken_bytes += len(data)
        return self._taken_bytes

    def drop(self) -> None:
        """Free the body, which is not needed any more."""
        self._taken.clear()

    @property
    def raw(self) -> bytes:
        return self._taken[0] if len(self._taken) == 1 else b"".join(self._taken)

    # The answer.

    def begin(self, status: int, headers: Headers, *, is_stream: bool) -> None:
        """Begin an answer; the head is sent with the first bytes of the body.

        The request's id is among the headers.
        """
        self._has_begun = True
        self._status = status
        # Without chunked framing there can be no trailer after the body.
        self._headers = headers if self._is_chunkable else [each for each in headers if each[0] != b"trailer"]
        self.is_stream = is_stream

    def write(self, data: bytes) -> None:
        if self.disconnected or not data:
            return
        if self._has_sent:
            # Framed inline, because this runs for every event of every stream.
            self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunkable else data)
            return
        self._parts_bytes += len(data)
        if self.is_stream or self._parts_bytes > COLLECTED_BYTES_MAX:
            self._send_head()
            for part in (*self._parts, data):
                self._send(self._framed(part))
            self._parts.clear()
        else:
            self._parts.append(data)

    @property
    def is_full(self) -> bool:
        return self._protocol.flow.write_paused

    async def drain(self) -> None:
        await self._protocol.flow.drain()

    @property
    def is_gone(self) -> bool:
        return self.disconnected

    @property
    def keeps_calls(self) -> bool:
        return False

    def follow(self) -> None:
        self._is_followed = not self._protocol.transport.is_closing()
        if self._is_followed:
            self._protocol.transport.set_write_buffer_limits(high=0)

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """End a complete answer."""
        if self.disconnected:
            return
        if self._has_sent:
            if self._is_chunkable:
                lines = b"".join(b"%b: %b\r\n" % trailer for trailer in trailers)
                self._protocol.transport.write(b"0\r\n%b\r\n" % lines)
        else:
            self._send_whole()
        self._end()

    def break_off(self, error: ApiError) -> None:
        """End a broken answer: a stream with an error event, others with an error status or a reset."""
        if self.is_stream:
            self.write(self.route.error_event(error))
            self.finish()
        elif self._has_sent:
            self._protocol.transport.abort()
        else:
            self._refuse(error)

    def refuse(self, error: Exception) -> None:
        """Send an error instead of an answer, or at the end of one that has begun."""
        if self._has_begun:
            self.break_off(to_api_error(error))
        else:
            self._refuse(to_api_error(error))

    def _refuse(self, error: ApiError) -> None:
        self._parts = [self.route.error_body(error)]
        self._status = error.status
        self._headers = [(b"content-type", b"application/json"), (HEADER, self.id.encode()), *error.headers]
        self.is_stream = False
        self.finish()

    def _send_head(self) -> None:
        self._has_sent = True
        framing = _STREAM_HEADERS if self.is_stream else b""
        if self._is_chunkable:
            framing += b"transfer-encoding: chunked\r\n"
        else:
            self.keep_alive = False
        self._send = self._protocol.transport.write
        self._send(self._head(framing))

    def _send_whole(self) -> None:
        self._has_sent = True
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        framing = b"content-length: %d\r\n" % len(content)
        head = self._head(_STREAM_HEADERS + framing if self.is_stream else framing)
        if len(content) < _LARGE_BYTES:
            self._protocol.transport.write(head + content)
        else:
            self._protocol.transport.writelines((head, content))

    def _head(self, framing: bytes) -> bytes:
        headers = self._headers + self._protocol.server_state.default_headers
        if not (self.keep_alive and self.is_whole):
            self.keep_alive = False
            framing += b"connection: close\r\n"
        lines = b"%b: %b\r\n" * len(headers) % tuple(chain.from_iterable(headers))
        return b"%b%b%b\r\n" % (STATUS_LINE[self._status], lines, framing)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunkable else data

    def _end(self) -> None:
        self.response_complete = True
        # An idle connection keeps its last exchange.
        self._taken, self._parts = [], []
        if self._is_followed and not self._protocol.transport.is_closing():
            self._protocol.transport.set_write_buffer_limits()
        self._protocol.note_answered(self)

    async def run_asgi(self, app: Any) -> None:
        """Unused: uvicorn starts its cycles with this method, but the protocol starts exchanges."""
        raise NotImplementedError
