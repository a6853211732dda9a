"""One connection to a backend: requests out, answers in, with a bound on everything that a backend may send."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import httptools

from runtime.http.origin import Origin
from runtime.http.repeated import RepeatedHead

if TYPE_CHECKING:
    from runtime.http.client import Client

HEAD_BYTES_MAX = 64 * 2**10
HEADERS_MAX = 256
# Heads before the final one, as of 103 Early Hints.
INTERIM_MAX = 16

_SWITCHING, _OK = 101, 200


@dataclass(frozen=True, slots=True)
class Broken:
    """The reason why an answer did not complete.

    `is_stale`: the connection had been used before and was closed without a byte, as happens when a backend closes
    an idle connection at that moment. `is_unread`: the backend's system refused the bytes, so it did not read all.
    """

    reason: str
    is_stale: bool = False
    is_unread: bool = False


class Receiver(Protocol):
    """Takes one answer. Nothing here raises, and nothing blocks."""

    def take_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Take the final head; names are in lower case."""

    def take(self, data: bytes) -> None:
        """Take the next bytes of the body."""

    def end(self, broken: Broken | None) -> None:
        """Called once: the answer is whole, or broken. Not after `abort`."""

    def look_at_clock(self, now_s: float, *, is_heard: bool) -> None:
        """Called now and then while the answer lasts; `is_heard` when bytes have come since the last time."""


class Connection(asyncio.Protocol):
    """Carries one request at a time. Its client owns it."""

    def __init__(self, client: "Client", origin: Origin) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self.idle_since_s = 0.0
        self._client = client
        self._transport: asyncio.Transport
        # Pieces of a body are many: the parser puts them there itself.
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._is_reused = False
        self._is_paused = False
        self._status = 0
        self._repeated: RepeatedHead[dict[bytes, bytes]] = RepeatedHead()
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._parts.clear()
        # The first bytes received, if the parser has them.
        self._first = b""
        # Bytes received since the last piece of body, below zero after a head; the parser may keep all of them.
        self._kept_bytes = 0
        self._has_head = False
        self._is_interim = False
        self._interim_count = 0
        self._is_over = False
        self._is_kept_alive = False
        self._is_heard = False
        self._has_heard = False

    @property
    def is_usable(self) -> bool:
        return self._receiver is None and not self._transport.is_closing()

    def ask(self, parts: list[bytes], receiver: Receiver) -> None:
        """Send a request; the receiver gets its answer."""
        self._receiver = receiver
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def abort(self) -> None:
        """Stop the backend's work, because no client waits for the answer any more."""
        self._receiver = None
        self._transport.abort()

    def pause(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def look_at_clock(self, now_s: float) -> None:
        is_heard, self._is_heard = self._is_heard, False
        if self._receiver:
            self._receiver.look_at_clock(now_s, is_heard=is_heard)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._client.note_open(self)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            self._transport.abort()  # nothing was asked
            return
        self._is_heard = True
        if not self._has_heard:
            if body := self._repeated.body_in(data):
                self._repeat(receiver, body)
                return
            self._first = data
            self._has_heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # Bytes after a whole answer make the connection unusable, not the answer.
            self._is_kept_alive = False
            if not self._is_over:
                self._break("its answer is not HTTP")
                return
        # Short, because it runs for every event of every stream.
        if parts := self._parts:
            self._kept_bytes = 0
            body = parts.pop() if len(parts) == 1 else self._joined()
            if self._receiver:
                receiver.take(body)
            if self._is_over:
                self._end(data)
        elif self._is_over:
            self._finish(None)
        else:
            self._keep(len(data))

    def _joined(self) -> bytes:
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def _end(self, data: bytes) -> None:
        """Note that the answer is whole; if `data` is all of it, remember its head."""
        if data is self._first and self._is_kept_alive and self._status == _OK:
            self._repeated.learn(data, self._headers)
        self._finish(None)

    def _keep(self, size_bytes: int) -> None:
        """Note bytes that the parser may keep: they were no piece of a body."""
        self._kept_bytes = 0 if self._kept_bytes < 0 else self._kept_bytes + size_bytes
        if self._kept_bytes > HEAD_BYTES_MAX:
            self._break(f"its headers are larger than {HEAD_BYTES_MAX} bytes")

    def _repeat(self, receiver: Receiver, body: bytes) -> None:
        """Give the receiver a whole answer whose head the parser has taken before; it need not see it again."""
        assert self._repeated.meaning
        receiver.take_head(_OK, self._repeated.meaning)
        if self._receiver is receiver:
            receiver.take(body)
        if self._receiver is receiver:
            self._receiver = None
            if self._transport.is_closing():
                self._transport.abort()
            else:
                self._make_room()
            receiver.end(None)

    def _make_room(self) -> None:
        """Offer the connection for the next request."""
        self._is_reused = True
        if self._is_paused:  # a slow reader of this answer must not delay the next one
            self.resume()
        self._client.take_back(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.note_lost(self)
        del self._parser  # it holds the connection: together they would stay until the collector finds them
        if self._receiver is None:
            return
        is_framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if self._has_head and not is_framed and exc is None:
            self._finish(None)
            return
        is_refused = isinstance(exc, ConnectionResetError | BrokenPipeError)
        is_stale = self._is_reused and not self._has_heard
        reason = type(exc).__name__ if exc else "the connection was closed"
        self._finish(Broken(reason, is_stale, is_stale and is_refused))

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Refuse data after a whole answer: it answers no request. The parser may be in the middle of it.

        Raises ValueError, which ends the parser's work.
        """
        if self._is_over:
            raise ValueError("not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header of the answer. Raises ValueError if there are more than HEADERS_MAX."""
        self._header_count += 1
        if self._header_count > HEADERS_MAX:
            raise ValueError("too many headers")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Give the receiver the final head.

        Raises ValueError for a switch of protocols, or after INTERIM_MAX interim heads.
        """
        status = self._status = self._parser.get_status_code()
        if status == _SWITCHING:
            raise ValueError("not asked for")
        self._kept_bytes = -1
        self._is_interim = status < 200
        if self._is_interim:
            self._interim_count += 1
            if self._interim_count > INTERIM_MAX:
                raise ValueError("no final head")
            self._headers.clear()
        elif self._receiver:
            self._has_head = True
            self._receiver.take_head(status, self._headers)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            return
        self._is_over = True
        self._is_kept_alive = self._parser.should_keep_alive()

    def _break(self, reason: str) -> None:
        self._is_kept_alive = False
        self._finish(Broken(reason))

    def _finish(self, broken: Broken | None) -> None:
        """Make room for the next request first: the receiver may ask again at once."""
        receiver, self._receiver = self._receiver, None
        if self._is_kept_alive and not self._transport.is_closing():
            self._begin()
            self._make_room()
        else:
            self._transport.abort()
        if receiver:
            receiver.end(broken)
