"""An answer on its way to one caller, kept for the case that it is whole."""

from gateway.cache.flight import BYTES_MAX, OnWhole
from gateway.lanes.base import Answer, Out


class KeptBody:
    """The body of an answer, whose bytes are shown to `on_whole` when it came to its end."""

    def __init__(self, answer: Answer, on_whole: OnWhole) -> None:
        self._answer = answer
        self._on_whole = on_whole

    async def send(self, out: Out) -> None:
        kept = _Kept(out)
        await self._answer.body.send(kept)
        if self._answer.meter.is_complete and kept.size_bytes <= BYTES_MAX:
            self._on_whole(self._answer, b"".join(kept.chunks))

    async def close(self) -> None:
        await self._answer.body.close()


class _Kept:
    """Passes everything on, and remembers it up to a bound."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self.chunks: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes <= BYTES_MAX:
            self.chunks.append(data)
        else:
            self.chunks.clear()
        self._out.write(data)

    @property
    def is_full(self) -> bool:
        return self._out.is_full

    async def drain(self) -> None:
        await self._out.drain()
