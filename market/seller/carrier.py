"""One job's answer on the buyer's own HTTP request, and the server's side of its connection."""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.types import Message, Receive, Send

from market.protocol.channels.admission import Reason
from market.protocol.channels.admission import Refusal as VoucherRefusal
from market.protocol.channels.job import Code
from runtime.http.connections import BoundedProtocol

_PAYMENT_REQUIRED = 402
_STATUS: dict[Code, int] = {
    "malformed": 400,
    "too_long": 400,
    "refused": 400,
    "superseded": 409,
    "full": 429,
    "content": 451,
    "failed": 502,
    "not_idle": 503,
    "preempted": 503,
    "draining": 503,
}
_RETRY_AFTER_S: dict[Code, int] = {"full": 2, "not_idle": 60, "preempted": 60, "draining": 600}
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # Keep proxies from buffering the stream.
    (b"x-accel-buffering", b"no"),
]


class Gone(Exception):
    """The buyer has disconnected."""


class JobRefused(Exception):
    """The seller does not answer, or stops answering; has a code for programs and a sentence for users."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message

    @classmethod
    def of_voucher(cls, refusal: VoucherRefusal) -> "JobRefused":
        reason: Reason = refusal.reason
        return cls(reason, f"{refusal.sentence[0].upper()}{refusal.sentence[1:]}.")

    @property
    def status(self) -> int:
        """Return the HTTP status; problems with a voucher are payment problems."""
        return _STATUS.get(self.code, _PAYMENT_REQUIRED)

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if seconds := _RETRY_AFTER_S.get(self.code):
            headers.append((b"retry-after", b"%d" % seconds))
        return headers

    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": self.message}})


class AgentProtocol(BoundedProtocol):
    """Tells what the kernel has accepted from what waits here, and bounds how long an answer stays unread."""

    send_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Writing counts as paused while a byte is still here, so `send` knows what has gone out.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)


class Carrier:
    """One request whose body has been read. `begun` is called when its answer begins.

    Whatever `send` has accepted counts as delivered.
    """

    def __init__(self, receive: Receive, send: Send, begun: Callable[[], None] = lambda: None) -> None:
        self._receive = receive
        self._send = send
        self._begun = begun
        self._gone = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def refuse(self, refused: JobRefused) -> None:
        """Refuse to answer; nothing was sent before."""
        body = refused.body()
        headers = [*refused.headers(), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self) -> None:
        """Begin an answer, which consists of events. Raises Gone."""
        self._begun()
        self._listening = asyncio.create_task(self._listen())
        await self._put({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def send(self, event: bytes) -> None:
        """Send one event, with its empty line; return once the network has accepted it. Raises Gone."""
        await self._put({"type": "http.response.body", "body": event, "more_body": True})
        # Nothing more to write, but this waits until the bytes before it have left.
        await self._put({"type": "http.response.body", "body": b"", "more_body": True})

    async def gone(self) -> None:
        """Return as soon as the buyer has hung up."""
        await self._gone.wait()

    async def end(self) -> None:
        """Close the answer, if one has begun."""
        if self._listening is None:
            return
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._send({"type": "http.response.body", "body": b""})

    async def _put(self, message: Message) -> None:
        await self._send(message)
        if self._gone.is_set():
            raise Gone

    async def _listen(self) -> None:
        """The buyer sends nothing more, so its next message is the disconnect."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
