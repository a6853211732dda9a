"""A provider that answers with far more than an answer can be, in the way that the model's name says.

`gzip`: some kilobytes that stand for a gigabyte. `nested`, `line` and `events`: as much in the open, as one JSON
value, one line of a stream, or event after event. `error`: in place of an error's body. `garbled` is no more than
megabytes, but of what takes long to read.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from aiohttp import web

from tests.fakes.provider_server import Handler, ProviderServer, Received, running

FLOOD_BYTES = 2**29
FLOODS = {
    "gzip": b" ",
    "nested": b'[[],"a"],',
    "line": b"x",
    "events": b'data: {"choices":[],"more":"%b"}\n\n' % (b"x" * 100_000),
    "error": b"x",
    "garbled": b'[[],"a"],',
}
_GARBLED_BYTES = 4 * 2**20
_PIECE_BYTES = 2**20
_AT_ONCE = 2**18


@contextmanager
def flooding_provider() -> Iterator[ProviderServer]:
    """Speaks like OpenAI and Anthropic, as far as no check reads its content."""
    routes: dict[str, Handler] = {"/v1/chat/completions": _answer, "/v1/messages": _answer}
    with running(ProviderServer(routes)) as server:
        yield server


async def _answer(request: web.Request, received: Received) -> web.StreamResponse:
    name = str(received.body["model"])
    is_stream = received.body.get("stream") and name not in ("nested", "garbled")
    kind = "text/event-stream" if is_stream else "application/json"
    response = web.StreamResponse(status=500 if name == "error" else 200, headers={"Content-Type": kind})
    if name == "gzip":
        response.headers["Content-Encoding"] = "gzip"
    await response.prepare(request)
    begin = b'data: {"id":"' if is_stream and name != "events" else b"["
    size_bytes = _GARBLED_BYTES if name == "garbled" else FLOOD_BYTES
    piece = FLOODS[name] * (_PIECE_BYTES // len(FLOODS[name]))
    if name == "gzip":
        await response.write(gzipped(begin, piece, size_bytes // len(piece)))
    else:
        await response.write(begin)
        for _ in range(size_bytes // len(piece)):
            for at in range(0, len(piece), _AT_ONCE):
                await response.write(piece[at : at + _AT_ONCE])
    await response.write_eof()
    return response


@cache
def gzipped(begin: bytes, piece: bytes, count: int) -> bytes:
    """One gzip file of `begin` and so many pieces, made without compressing each of them."""
    crc = zlib.crc32(begin)
    for _ in range(count):
        crc = zlib.crc32(piece, crc)
    size = (len(begin) + len(piece) * count) & 0xFFFFFFFF
    blocks = _deflated(begin) + _deflated(piece) * count
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + blocks + b"\x03\0" + struct.pack("<II", crc, size)


def _deflated(data: bytes) -> bytes:
    """Blocks that refer to nothing before them, and end at a byte."""
    made = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return made.compress(data) + made.flush(zlib.Z_FULL_FLUSH)
