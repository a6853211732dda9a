"""A stand-in for the public name: HTTP/1.1 from any caller to the seller's port, one request per connection."""

import asyncio
import contextlib
import re

from tests.fakes.cloudflared import Orders

HEAD_BYTES_MAX = 2**16
PIECE_BYTES = 2**16
_BODY_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_HOP = re.compile(rb"\r\n(connection|keep-alive|upgrade): *[^\r]*", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\ncontent-type: *text/event-stream", re.IGNORECASE)


class Proxy:
    def __init__(self, orders: Orders, origin: tuple[str, int]) -> None:
        self._orders = orders
        self._origin = origin
        self._in_flight = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from start to end."""
        self._in_flight += 1
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
                head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head, reader, writer)
        finally:
            self._in_flight -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behaviour = self._orders.behaviour
        if not behaviour.is_ready:
            await _refuse(writer, "530 Origin Unreachable", "error code: 1033")
        elif self._in_flight > behaviour.in_flight_max:
            await _refuse(writer, "429 Too Many Requests", "too many requests in flight")
        else:
            await self._forward(head, reader, writer, behaviour.first_byte_s)

    async def _forward(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first_byte_s: float
    ) -> None:
        try:
            origin_reader, origin_writer = await asyncio.open_connection(*self._origin, limit=HEAD_BYTES_MAX)
        except OSError:
            await _refuse(writer, "502 Bad Gateway", "the origin refuses connections")
            return
        try:
            origin_writer.write(
                _HOP.sub(b"", head)[:-2] + b"cf-connecting-ip: 203.0.113.7\r\nconnection: close\r\n\r\n"
            )
            await _copy_body(head, reader, origin_writer)
            # The caller has gone, so close too.
            gone = asyncio.create_task(reader.read(1))
            passing = asyncio.create_task(_pass_on(head, origin_reader, writer, first_byte_s))
            await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, passing):
                task.cancel()
            await asyncio.gather(gone, passing, return_exceptions=True)
        finally:
            origin_writer.close()


async def _pass_on(
    head: bytes, origin_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first_byte_s: float
) -> None:
    try:
        async with asyncio.timeout(first_byte_s):
            answer = await origin_reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        await _refuse(writer, "524 A Timeout Occurred", "error code: 524")
        return
    except (OSError, EOFError):
        await _refuse(writer, "502 Bad Gateway", "the origin said nothing")
        return
    # cloudflared's defect 1449: events in answer to GET come when there are no more of them.
    if head.startswith(b"GET ") and _EVENTS.search(answer):
        writer.write(answer + await origin_reader.read(-1))
    else:
        writer.write(answer)
        while piece := await origin_reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    await writer.drain()


async def _copy_body(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if _CHUNKED.search(head):
        while True:
            line = await reader.readuntil(b"\r\n")
            size_bytes = int(line.split(b";")[0], 16)
            writer.write(line + await reader.readexactly(size_bytes + 2))
            await writer.drain()
            if not size_bytes:
                return
    found = _BODY_LENGTH.search(head)
    left_bytes = int(found[1]) if found else 0
    while left_bytes:
        piece = await reader.readexactly(min(left_bytes, PIECE_BYTES))
        left_bytes -= len(piece)
        writer.write(piece)
        await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    fields = f"content-type: text/plain\r\ncontent-length: {len(text)}\r\nconnection: close"
    writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{text}".encode())
    await writer.drain()
