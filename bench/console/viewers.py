"""Simulate browsers with live pages: each holds one stream and records when something came.

It runs as its own process, and reads Looks as JSON from its first line of input. It prints `looking` once each
stream has received something, views until its stdin ends, and prints each stream's Heard as JSON.
"""

import asyncio
import sys
import time
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

_PATIENCE_S = 30.0
_LOOKING = b"looking\n"


class Look(msgspec.Struct, frozen=True):
    """One page: the session's cookie as the browser sends it, and the stream's path."""

    who: str
    cookie: str
    path: str


class Looks(msgspec.Struct, frozen=True):
    root: str
    looks: list[Look]


class RecordingSink(msgspec.Struct):
    """What one stream received: the times, on the monotonic clock that all processes share, and the size."""

    who: str
    path: str
    status: int = 0
    at_ns: list[int] = msgspec.field(default_factory=list)
    size: int = 0
    has_ended: bool = False


class Viewer(asyncio.Protocol):
    """One page. Comments that keep a stream alive do not count as news."""

    def __init__(self, look: Look, host: str) -> None:
        self.heard = RecordingSink(look.who, look.path)
        self.has_news = asyncio.Event()
        self._request = (
            f"GET {look.path} HTTP/1.1\r\nhost: {host}\r\ncookie: {look.cookie}\r\n"
            "accept: text/event-stream\r\n\r\n"
        ).encode()
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names its arguments
        self._end()

    # Called by the parser.

    def on_headers_complete(self) -> None:
        self.heard.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.heard.size += len(body)
        if not body.startswith(b":"):
            self.heard.at_ns.append(time.monotonic_ns())
            self.has_news.set()

    def on_message_complete(self) -> None:
        self._end()

    def _end(self) -> None:
        self.heard.has_ended = True
        self.has_news.set()


async def look(looks: Looks) -> list[RecordingSink]:
    """View all pages until stdin ends."""
    url, loop = urlsplit(looks.root), asyncio.get_running_loop()
    address = (url.hostname or "127.0.0.1", url.port or 80)
    viewers = [Viewer(each, url.netloc) for each in looks.looks]
    transports = [
        (await loop.create_connection(lambda viewer=viewer: viewer, *address))[0]  # type: ignore[misc]
        for viewer in viewers
    ]
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(viewer.has_news.wait() for viewer in viewers))
    sys.stdout.buffer.write(_LOOKING)
    sys.stdout.buffer.flush()
    await asyncio.to_thread(sys.stdin.buffer.read)
    # From here on, this process itself ends the streams.
    heard = [msgspec.structs.replace(viewer.heard) for viewer in viewers]
    for transport in transports:
        transport.abort()
    return heard


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.readline(), type=Looks)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(look(given))))
