"""One HTTP exchange over ASGI: a bounded body in, a JSON answer or a stream of events out, and the hang-up."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from gateway.cloud_worker.errors import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HungUp(Exception):
    """The client went away before it had sent its whole request."""


@dataclass
class Exchange:
    """Keeps straight what has been sent, so that an error takes the form that is still open to it."""

    receive: Receive
    send: Send
    streaming: bool = False

    async def body(self, bytes_max: int, timeout_s: float) -> bytes:
        parts, size = [], 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise HungUp
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > bytes_max:
                        raise Refusal(413, "request_too_large", f"The body is larger than {bytes_max} bytes.")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, "request_timeout", f"The body did not arrive within {timeout_s} s.") from None

    async def hung_up(self) -> None:
        """Returns when the client has gone; to be awaited only after the body."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, headers: dict[bytes, bytes] | None = None) -> None:
        standard = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
        fields = list({**standard, **(headers or {})}.items())
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def event(self, data: bytes) -> None:
        """One server-sent event; the first one sends the head of the response."""
        if not self.streaming:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
            self.streaming = True
        await self.send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

    async def end(self) -> None:
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        """The error as the answer, or as the last event of a stream that then ends without [DONE]."""
        if self.streaming:
            await self.event(refusal.body())
            await self.end()
            return
        headers = {b"retry-after": refusal.retry_after.encode()} if refusal.retry_after else {}
        await self.answer(refusal.status, refusal.body(), headers)
