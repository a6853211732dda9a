"""Limits on a connection before its client is known: header bytes, time and open connections."""

from asyncio import TimerHandle, Transport
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runtime.errors import HeadersTooLarge, HostUnknown, Overloaded, RequestInvalid, ServiceError
from runtime.http.api_error import to_api_error
from runtime.http.hosts import Hosts
from runtime.request_ids import HEADER, new_request_id

HEAD_BYTES_MAX = 64 * 2**10
HEADERS_MAX = 256
# Most requests sent before earlier ones were answered; each is kept whole.
PIPELINED_MAX = 16
_VERSIONS = ("1.1", "1.0")
_WRONG_HOST = (
    "Host: this gateway listens on this machine only, and does not have this name. Use localhost. "
    "Behind a proxy, an admin must set identity.public_url or server.trusted_proxies."
)
# Each of these headers is ambiguous if given twice.
_SINGLE = (b"host", b"authorization", b"x-api-key", b"content-type")


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with bounds on what it leaves unbounded.

    The server's `limit_concurrency` is the number of connections here, and must be given.
    """

    hosts = Hosts()
    """The host names that callers may use."""
    head_s = 10.0
    """Seconds from a new connection, or the end of an answer, to the whole head of the next request."""
    send_s = 60.0
    """Seconds that a client may leave an answer unread."""

    # One timer for the connection's whole life, restarted when it fires, so that a request needs no timer.
    _timer: TimerHandle
    # None while a request is being answered.
    _waiting_since_s: float | None
    # None while the client reads its answer.
    _unread_since_s: float | None = None
    _unread_bytes = 0
    # Bytes received since the last whole head or piece of body; the parser may keep all of them.
    _kept_bytes = 0
    _problem: ServiceError | None = None
    # The head's fields by name; the last one if a name repeats.
    _fields: dict[bytes, bytes]
    _version: str
    _method: bytes
    _peer = ""
    # The head offers another protocol, and will be read again without the offer.
    _is_offer = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._waiting_since_s = self.loop.time()
        self._timer = self.loop.call_later(self.head_s, self._look_at_the_clock)
        assert self.limit_concurrency is not None
        if len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)  # a refused connection must not use up a slot
            transport.write(_answer(Overloaded("Too many connections are open. Try again shortly.")))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._problem:
            return
        self._kept_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self.send_400_response(f"Invalid HTTP request: {error}.")
        # Incomplete headers, or trailers after the body.
        if not self._problem and (self._kept_bytes > HEAD_BYTES_MAX or len(self.headers or ()) > HEADERS_MAX):
            self._refuse(_too_large())

    def _parse(self, data: bytes) -> None:
        """An offer to speak another protocol (h2c, websocket) is declined by answering as if it had not been made.

        A parser takes what follows such a head for the other protocol; a new one gets the head without the offer.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as end:
                self._is_offer = False
                data = self._head_without_offer() + data[end.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        fields = [field for field in self.headers if field[0] not in (b"connection", b"upgrade")]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            fields.append((b"connection", b"close"))
        version = self.parser.get_http_version().encode()
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, lines)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the request.

        Raises a GatewayError for a head that is not served: the parser then calls send_400_response.
        """
        self._problem = self._problem_with_head()
        if self._problem:
            raise self._problem  # which ends the parser's work, and leads to send_400_response
        self._kept_bytes = 0
        self._is_offer = self.parser.should_upgrade()
        if not self._is_offer:
            self._waiting_since_s = None
            self._begin_request()

    def _begin_request(self) -> None:
        """Begin a request whose head is complete and valid so far; its URL may still be unreadable."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._check_trailers()
        if not self._is_offer:
            super().on_message_complete()

    def _check_trailers(self) -> None:
        """Refuse too many or too large trailers, which may all have arrived at once."""
        has_more = len(self.headers) > len(self._fields)
        if len(self.headers) > HEADERS_MAX or (has_more and self._head_bytes() > HEAD_BYTES_MAX):
            self._problem = _too_large()
            raise self._problem

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Else a pipelined request is next, or the connection is lost.
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._waiting_since_s = self.loop.time()

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called for data that the parser refused."""
        self._refuse(self._problem or RequestInvalid(msg))

    def _problem_with_head(self) -> ServiceError | None:
        if len(self.headers) > HEADERS_MAX:
            return _too_large()
        fields = self._fields = dict(self.headers)
        version = self._version = self.parser.get_http_version()
        method = self._method = self.parser.get_method()
        self.expect_100_continue = b"expect" in fields and fields[b"expect"].lower() == b"100-continue"
        if version not in _VERSIONS or method == b"CONNECT":
            return RequestInvalid("Only HTTP 1.1 and 1.0 are supported, and CONNECT is not. Send another request.")
        if b"host" not in fields and version == "1.1":
            return RequestInvalid("Host: missing. HTTP 1.1 requires this header.")
        if (host := fields.get(b"host")) is not None and not self.hosts.allows(host, self._peer):
            return HostUnknown(_WRONG_HOST)
        if b"transfer-encoding" in fields and (problem := self._problem_with_coding(version)):
            return problem
        if len(fields) < len(self.headers) and (problem := self._problem_with_doubles()):
            return problem
        # Most of the kept bytes may be the start of a large body, so count the head alone.
        if self._kept_bytes > HEAD_BYTES_MAX and self._head_bytes() > HEAD_BYTES_MAX:
            return _too_large()
        if len(self.pipeline) >= PIPELINED_MAX:
            return Overloaded("Too many requests were sent before the first was answered. Wait for answers.")
        return None

    def _problem_with_coding(self, version: str) -> ServiceError | None:
        """Refuse other transfer codings: a proxy in front of the gateway could parse them differently."""
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings == [b"chunked"] and version == "1.1":
            return None
        return RequestInvalid("Transfer-Encoding: only chunked is supported, given once, with HTTP 1.1.")

    def _problem_with_doubles(self) -> ServiceError | None:
        names = [name for name, _ in self.headers if name in _SINGLE]
        twice = next((name for name in _SINGLE if names.count(name) > 1), None)
        return RequestInvalid(f"{twice.decode().title()}: given more than once.") if twice else None

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse(self, error: ServiceError) -> None:
        """Say why, unless that would go into the middle of an answer, and read no more requests."""
        self._problem = error
        if self._is_answering() and not self._takes_over():
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(_answer(error))
            self._end_reading(error)

    def _end_reading(self, error: Exception | None) -> None:
        """Answer no more requests. Closing while the client still sends would reset the connection."""
        self._problem = self._problem or (error if isinstance(error, ServiceError) else RequestInvalid("Refused."))
        if self._waiting_since_s is None:
            self._waiting_since_s = self.loop.time()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _takes_over(self) -> bool:
        """Take over an answer that has not begun, so that the application writes none; returns whether it did."""
        cycle: object = self.cycle  # or an Exchange on a hot route
        if self.pipeline or not isinstance(cycle, RequestResponseCycle) or cycle.response_started:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look_at_the_clock(self) -> None:
        self._note_progress()
        now_s, due_s = self.loop.time(), self._due_s()
        if due_s is not None and due_s <= now_s:
            self._give_up()
            due_s = self._due_s()
        rings_s = due_s if due_s is not None and due_s > now_s else now_s + self.head_s
        self._timer = self.loop.call_at(rings_s, self._look_at_the_clock)

    def _give_up(self) -> None:
        """Close a connection whose client has timed out."""
        self.transport.abort()  # closing would wait for a client that does not read

    def _note_progress(self) -> None:
        """Restart the timeout if the client has read some bytes, even slowly."""
        unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_since_s is not None and unread_bytes < self._unread_bytes:
            self._unread_since_s = self.loop.time()
        self._unread_bytes = unread_bytes

    def _due_s(self) -> float | None:
        """Return the time at which the client times out."""
        if self._unread_since_s is not None:
            return self._unread_since_s + self.send_s
        if self._waiting_since_s is None:
            return None
        is_unread = self.transport.get_write_buffer_size() > 0
        return self._waiting_since_s + (self.send_s if is_unread else self.head_s)


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"The headers are larger than {HEAD_BYTES_MAX} bytes, or more than {HEADERS_MAX}.")


def _answer(error: ServiceError) -> bytes:
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
