"""Answer on the buyer's own HTTP request, and the server's side of its connection."""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive, Send

from market.seller.carrier import Gone, JobRefused
from runtime.http.connections import BoundedProtocol

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    # Keep proxies from buffering the stream.
    (b"x-accel-buffering", b"no"),
]


class AgentProtocol(BoundedProtocol):
    """Tells what the kernel has accepted from what waits here, and bounds how long an answer stays unread."""

    send_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Writing counts as paused while a byte is still here, so `send` knows what has gone out.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)


class HttpCarrier:
    """One request whose body has been read. `begun` is called when its answer begins."""

    def __init__(self, receive: Receive, send: Send, begun: Callable[[], None] = lambda: None) -> None:
        self._receive = receive
        self._send = send
        self._begun = begun
        self._gone = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def refuse(self, refused: JobRefused) -> None:
        body = refused.body()
        headers = [*refused.headers(), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self) -> None:
        self._begun()
        self._listening = asyncio.create_task(self._listen())
        await self._put({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def send(self, event: bytes) -> None:
        await self._put({"type": "http.response.body", "body": event, "more_body": True})
        # Nothing more to write, but this waits until the bytes before it have left.
        await self._put({"type": "http.response.body", "body": b"", "more_body": True})

    async def gone(self) -> None:
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
