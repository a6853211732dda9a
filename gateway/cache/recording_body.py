"""Copy an answer on its way to one caller, to store it if it is complete."""

from gateway.cache.coalesced_answer import BYTES_MAX, OnWhole
from gateway.lanes.base import Answer, Out
from gateway.lanes.body import Sink


class RecordingBody:
    """An answer's body, whose bytes are passed to `on_whole` if it reached its end."""

    def __init__(self, answer: Answer, on_whole: OnWhole) -> None:
        self._answer = answer
        self._on_whole = on_whole

    async def send(self, out: Out) -> None:
        kept = _Recorder(out)
        await self._answer.body.send(kept)
        if self._answer.meter.is_complete and kept.size_bytes <= BYTES_MAX:
            self._on_whole(self._answer, b"".join(kept.chunks))

    async def close(self) -> None:
        await self._answer.body.close()


class _Recorder(Sink):
    """Pass everything on, and remember it up to a size limit."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self.chunks: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes <= BYTES_MAX:
            self.chunks.append(data)
        else:
            self.chunks.clear()
        self._out.write(data)
