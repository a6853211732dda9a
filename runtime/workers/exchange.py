"""One HTTP exchange over ASGI: a bounded body in, a JSON answer or a stream of events out, and the hang-up."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from runtime.workers.errors import Refusal

CANCEL_S = 10.0

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
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Further ones of a stream."""
    has_gone: Callable[[], bool] = lambda: False
    """Return whether the client disconnected, as far as the server knows now."""

    async def body(self, bytes_max: int, timeout_s: float) -> bytes:
        """Return the request's whole body.

        Raises HungUp if the client disconnects, and Refusal if the body is above `bytes_max` or takes longer than
        `timeout_s`.
        """
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
        await self.events((data,))

    async def events(self, several: Iterable[bytes]) -> None:
        """As `event`, of some that go together."""
        if not self.streaming:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *self.headers]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
            self.streaming = True
        body = b"".join([b"data: %b\n\n" % data for data in several])
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        if self.has_gone():
            # The client is gone: sends no longer wait, so the whole answer would be read. Wait to be cancelled.
            await asyncio.sleep(CANCEL_S)

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


async def until_hung_up(exchange: Exchange, serving: Coroutine[None, None, None]) -> None:
    """Run `serving`, and cancel it, down to the provider's connection, when the client goes away."""
    work = asyncio.create_task(serving)
    hang_up = asyncio.create_task(exchange.hung_up())
    try:
        await asyncio.wait({work, hang_up}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()
        hang_up.cancel()
        await asyncio.wait({work, hang_up}, timeout=CANCEL_S)
