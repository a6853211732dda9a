"""The bytes of an answer on their way to the caller: its destination, and the body that writes there."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol


class Out(Protocol):
    """The destination of bytes. One event loop writes; no method blocks."""

    def write(self, data: bytes) -> None: ...

    @property
    def is_full(self) -> bool:
        """Whether the reader lags; then await `drain` before writing much more."""
        return False

    async def drain(self) -> None:
        """Return when there is room again, or the client stopped reading."""


class Sink:
    """Passes bytes on to another destination. A subclass overrides what it changes."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def write(self, data: bytes) -> None:
        self._out.write(data)

    @property
    def is_full(self) -> bool:
        return self._out.is_full

    async def drain(self) -> None:
        await self._out.drain()


class Body(Protocol):
    """The rest of an answer that has begun. The owner sends it at most once, and always closes it."""

    async def send(self, out: Out) -> None:
        """Write everything, then return.

        Raises LaneFailed and GenerationError if it breaks off. On cancellation it stops the upstream immediately.
        """

    async def close(self) -> None:
        """Stop the upstream's work, if it has not ended."""


class GeneratorBody:
    """The body of a lane that generates its bytes itself. The generator must be a `begun` one."""

    def __init__(self, chunks: AsyncGenerator[bytes]) -> None:
        self._chunks = chunks

    async def send(self, out: Out) -> None:
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                out.write(chunk)
                if out.is_full:
                    await out.drain()

    async def close(self) -> None:
        await self._chunks.aclose()


class BytesBody:
    """A body that is complete from the start."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def send(self, out: Out) -> None:
        out.write(self._content)

    async def close(self) -> None:
        pass


async def begun(body: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Advance a generator past its first, empty yield.

    A generator that never began would not run its `finally` when it is closed.
    """
    await anext(body)
    return body
