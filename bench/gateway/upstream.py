"""Run the upstream behind every measured gateway: OpenAI's formats, no computation, hardly any CPU.

A prompt that contains `events=32 pause_us=10000` gets a stream of 32 events, 10 ms apart. Each event carries the
monotonic time at which it was sent, as in `@123456789@`, so a reader on the same machine knows its delay.
"""

import asyncio
import re
import sys
import time

import httptools
import uvloop

MODEL = "mock"
TEXT = "A gateway should cost next to nothing. " * 5
_PLAN = re.compile(rb"events=(\d+) pause_us=(\d+)")
_STREAM = re.compile(rb'"stream": ?true')
_WITH_USAGE = re.compile(rb'"include_usage": ?true')

_USAGE = b'{"prompt_tokens":120,"completion_tokens":32,"total_tokens":152}'
_NAMES = b'"id":"chatcmpl-bench","created":1700000000,"model":"mock"'
_ANSWER = (
    b'{"object":"chat.completion",%s,"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},'
    b'"finish_reason":"stop"}],"usage":%s}' % (_NAMES, TEXT.encode(), _USAGE)
)
_MODELS = b'{"object":"list","data":[{"id":"mock","object":"model","created":1700000000,"owned_by":"bench"}]}'
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


def _event(choices: bytes, rest: bytes = b"") -> bytes:
    data = b'data: {"object":"chat.completion.chunk",%s,"choices":[%s]%s}\n\n' % (_NAMES, choices, rest)
    return _chunk(data)


def _delta(delta: bytes, finish: bytes = b"null") -> bytes:
    return _event(b'{"index":0,"delta":%s,"finish_reason":%s}' % (delta, finish))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_WHOLE_ANSWER, _MODEL_LIST, _NOTHING = _whole(_ANSWER), _whole(_MODELS), _whole(b"{}")
_UNKNOWN = _whole(b'{"error":{"message":"no such path"}}', b"404 Not Found")
_FIRST, _LAST = _delta(b'{"role":"assistant","content":""}'), _delta(b"{}", b'"stop"')
_LAST_USAGE = _event(b"", b',"usage":' + _USAGE)
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One connection. Its requests follow each other."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._path = b""
        self._body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # Called by the parser.

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        write = self._transport.write
        if self._parser.get_method() == b"GET":
            # Routers ask for health and server info, and accept an empty answer.
            write(_MODEL_LIST if self._path.endswith(b"/models") else _NOTHING)
        elif not self._path.endswith(b"/chat/completions"):
            write(_UNKNOWN)
        elif _STREAM.search(body := b"".join(self._body)):
            self._begin_stream(body)
        else:
            write(_WHOLE_ANSWER)

    def _begin_stream(self, body: bytes) -> None:
        plan = _PLAN.search(body)
        events, pause_us = (int(plan[1]), int(plan[2])) if plan else (32, 0)
        self._transport.write(_STREAM_HEAD + _FIRST)
        end = _LAST + (_LAST_USAGE if _WITH_USAGE.search(body) else b"") + _END
        self._later(pause_us / 1e6, events, end)

    def _later(self, pause_s: float, left: int, end: bytes) -> None:
        if pause_s:
            self._loop.call_later(pause_s, self._next, pause_s, left, end)
        else:
            self._loop.call_soon(self._next, pause_s, left, end)

    def _next(self, pause_s: float, left: int, end: bytes) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(end)
            return
        self._transport.write(_delta(b'{"content":"@%d@"}' % time.monotonic_ns()))
        self._later(pause_s, left - 1, end)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
