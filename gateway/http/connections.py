"""What a connection may cost before anybody knows who it is: bytes of headers, time, and its place."""

from asyncio import TimerHandle, Transport
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import GatewayError, HeadersTooLarge, Overloaded, RequestInvalid, to_api_error
from gateway.request_ids import HEADER, new_request_id

HEAD_BYTES_MAX = 64 * 2**10
HEADERS_MAX = 256
# Requests that were sent before the one ahead of them was answered; each is kept whole.
PIPELINED_MAX = 16


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with bounds on what it leaves unbounded.

    The server's `limit_concurrency` is the number of connections here, and must be given.
    """

    head_s = 10.0
    """From a new connection, or the end of an answer, to the whole head of the next request."""
    send_s = 60.0
    """How long a client may leave an answer unread."""

    # One timer for the connection's whole life, armed anew when it rings: so a request costs none.
    _timer: TimerHandle
    # None while a request is being answered.
    _waiting_since_s: float | None
    # None while the client takes what it is sent.
    _unread_since_s: float | None = None
    _unread_bytes = 0
    # What came since the last whole head or piece of body: the parser may be keeping all of it.
    _kept_bytes = 0
    _problem: GatewayError | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting_since_s = self.loop.time()
        self._timer = self.loop.call_later(self.head_s, self._look_at_the_clock)
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)  # one that goes takes nobody's place
            transport.write(_answer(Overloaded("Too many connections are open. Try again shortly.")))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._problem:
            return
        self._kept_bytes += len(data)
        super().data_received(data)
        # Headers that are not whole yet, or trailers after the body.
        if not self._problem and (self._kept_bytes > HEAD_BYTES_MAX or len(self.headers or ()) > HEADERS_MAX):
            self._refuse(_too_large())

    def on_headers_complete(self) -> None:
        self._problem = self._problem_with_head()
        if self._problem:
            raise self._problem  # which ends the parser's work, and leads to send_400_response
        self._kept_bytes = 0
        super().on_headers_complete()  # which may still find that it cannot read the target
        self._waiting_since_s = None

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else a pipelined request is next
            self._waiting_since_s = self.loop.time()

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called for whatever the parser did not take."""
        self._refuse(self._problem or RequestInvalid(msg))

    def _problem_with_head(self) -> GatewayError | None:
        if len(self.headers) > HEADERS_MAX:
            return _too_large()
        # What was kept may be the start of a large body for the most part.
        if self._kept_bytes > HEAD_BYTES_MAX and self._head_bytes() > HEAD_BYTES_MAX:
            return _too_large()
        if len(self.pipeline) >= PIPELINED_MAX:
            return Overloaded("Too many requests were sent before the first was answered.")
        return None

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse(self, error: GatewayError) -> None:
        """Say why, unless that would go into the middle of an answer, and read no more requests."""
        self._problem = error
        if self._is_answering():
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(_answer(error))
            # Closing on what is still being sent would reset the connection before the answer is read.
            self.transport.write_eof()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look_at_the_clock(self) -> None:
        self._note_progress()
        now_s, due_s = self.loop.time(), self._due_s()
        if due_s is not None and due_s <= now_s:
            self.transport.abort()  # closing would wait for a client that does not read
            return
        self._timer = self.loop.call_at(due_s or now_s + self.head_s, self._look_at_the_clock)

    def _note_progress(self) -> None:
        """A client that reads slowly is not one that does not read."""
        unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_since_s is not None and unread_bytes < self._unread_bytes:
            self._unread_since_s = self.loop.time()
        self._unread_bytes = unread_bytes

    def _due_s(self) -> float | None:
        """When the client will have been waited for long enough."""
        if self._unread_since_s is not None:
            return self._unread_since_s + self.send_s
        if self._waiting_since_s is None:
            return None
        is_unread = self.transport.get_write_buffer_size() > 0
        return self._waiting_since_s + (self.send_s if is_unread else self.head_s)


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"The headers are larger than {HEAD_BYTES_MAX} bytes, or more than {HEADERS_MAX}.")


def _answer(error: GatewayError) -> bytes:
    answer = to_api_error(error)
    body = answer.body()
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (HEADER, new_request_id().encode()),
        *answer.headers,
    )
    head = b"HTTP/1.1 %d %s\r\n" % (answer.status, HTTPStatus(answer.status).phrase.encode())
    return head + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body
