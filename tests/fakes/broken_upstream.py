"""A backend that answers whatever bytes it was told to, over real sockets: wrong, late, endless or torn off.

A request names its script in its `user` field, or in its model's name where a dialect has no such field. Without a
script, and to questions about models, the answers are good ones.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

STEP_TIMEOUT_S = 60.0
STEPS_MAX = 1_000_000


@dataclass(frozen=True)
class Endless:
    """The same bytes again and again, while the client reads."""

    piece: bytes
    pause_s: float = 0.0


Step: TypeAlias = bytes | float | Endless | Literal["close", "reset"]
"""Bytes are written, seconds waited. After the last step the connection stays open for the next request."""


def whole(content: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
    return head % (len(content), more) + content


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def said(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return (
        b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).encode() + END
    )


END = b"\n\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = (said("one"), said("two", "stop"), b"data: [DONE]" + END)
UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
"""Of a stream that ends with its connection, so that a lost server and a finished one look alike."""
STREAM = SSE + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
CHAT = json.dumps(
    {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [MESSAGE]}
).encode()
_VECTORS = b'{"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "m"}'
_MODELS = whole(b'{"object": "list", "data": [{"id": "m", "object": "model"}]}')


@dataclass
class BrokenUpstream:
    """Listens on 127.0.0.1 from a thread of its own until `stop`."""

    scripts: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    port: int = 0
    answering: int = 0
    """Requests that are being answered just now."""
    connections: int = 0
    last_body: bytes = b""
    greeting: bytes = b""
    """Written to every new connection before anything was asked."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(STEP_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STEP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STEP_TIMEOUT_S)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            writer.write(self.greeting)
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(_length(head))
                steps: tuple[Step, ...] = (_MODELS,)
                if head.startswith(b"POST"):
                    self.last_body, steps = body, self._steps(head, body)
                self.answering += 1
                try:
                    await _while_heard(reader, self._answer(steps, writer))
                finally:
                    self.answering -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def _steps(self, head: bytes, body: bytes) -> tuple[Step, ...]:
        try:
            asked = json.loads(body)
        except ValueError:
            asked = {}
        good: tuple[Step, ...] = (STREAM if asked.get("stream") else whole(CHAT),)
        if b"/embeddings " in head:
            good = (whole(_VECTORS),)
        return self.scripts.get(str(asked.get("user") or asked.get("model")), good)

    async def _answer(self, steps: tuple[Step, ...], writer: asyncio.StreamWriter) -> None:
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Endless):
                for _ in range(STEPS_MAX):
                    await _write(writer, step.piece)
                    await asyncio.sleep(step.pause_s)
            elif isinstance(step, bytes):
                await _write(writer, step)
            else:
                if step == "reset":
                    _arm_reset(writer)
                raise ConnectionResetError


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _while_heard(reader: asyncio.StreamReader, answering: Coroutine[None, None, None]) -> None:
    """The client may hang up while the answer is being made."""
    task, gone = asyncio.create_task(answering), asyncio.create_task(_until_end(reader))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionResetError
        await task
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_end(reader: asyncio.StreamReader) -> None:
    # A reset is an exception and no end: who closes with something unread resets.
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.02)


def _arm_reset(writer: asyncio.StreamWriter) -> None:
    """Closing will reset the connection instead of ending it."""
    made = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


@contextmanager
def broken_upstream() -> Iterator[BrokenUpstream]:
    upstream = BrokenUpstream()
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()
