"""`python -m market.token_counting`: load tokenizers and count with them, as frames on stdin ask, until stdin
closes.
"""

import os
import select
import signal
import sys

import msgspec
from tokenizers import Tokenizer

from accounting.errors import TextNotCounted
from accounting.metering.delivered import TokenCounter, is_librarys
from market.errors import TokenizerRefused
from market.protocol.counting.shapes import check_shape
from market.token_counting.frames import (
    FRAME_BYTES_MAX,
    LENGTH,
    CountingLimits,
    CountQuestion,
    CountReply,
    CountSegments,
    LoadTokenizer,
    packed,
)
from runtime.memory import limit_memory

LOADED_MAX = 4


def main() -> int:
    first = _frame()
    if first is None:
        return 0
    limits = msgspec.msgpack.decode(first, type=CountingLimits)
    limit_memory(limits.memory_bytes)
    # The signal's default action ends the process even inside the library; a Python handler would wait for it.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = _silenced()
    counters = _Counters()
    while (frame := _frame(limits.idle_s)) is not None:
        question: CountQuestion = msgspec.msgpack.decode(frame, type=CountQuestion)
        signal.setitimer(
            signal.ITIMER_PROF, limits.load_cpu_s if isinstance(question, LoadTokenizer) else limits.count_cpu_s
        )
        reply = counters.load(question) if isinstance(question, LoadTokenizer) else counters.count(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(replies, packed(reply))
    return 0


class _Counters:
    def __init__(self) -> None:
        self._loaded: dict[str, TokenCounter] = {}

    def load(self, request: LoadTokenizer) -> CountReply:
        try:
            tokenizer = Tokenizer.from_buffer(check_shape(request.content))
        except TokenizerRefused as error:
            return CountReply(trouble="refused", part=error.part, problem=error.problem)
        except BaseException as error:
            if is_librarys(error):
                return CountReply(trouble="refused", problem=f"cannot be read: {str(error)[:200]}")
            raise
        if len(self._loaded) >= LOADED_MAX:
            self._loaded.pop(next(iter(self._loaded)))
        self._loaded[request.sha256] = TokenCounter(tokenizer, request.sha256)
        return CountReply()

    def count(self, request: CountSegments) -> CountReply:
        counter = self._loaded.pop(request.sha256, None)
        if counter is None:
            return CountReply(trouble="unknown")
        # Move it to the end: the least recently used is dropped first.
        self._loaded[request.sha256] = counter
        try:
            return CountReply(counter.segment_tokens(request.segments))
        except TextNotCounted as error:
            return CountReply(trouble="failed", problem=str(error))


def _frame(idle_s: float | None = None) -> bytes | None:
    """Return the next frame; None at the end of input, or if none begins within `idle_s`."""
    if idle_s is not None and not select.select([0], [], [], idle_s)[0]:
        return None
    head = _read(LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    assert length <= FRAME_BYTES_MAX, "parents keep to the bounds"
    return _read(length)


def _read(size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(0, min(size, 2**20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(replies: int, data: bytes) -> None:
    while data:
        data = data[os.write(replies, data) :]


def _silenced() -> int:
    """Return a descriptor for replies; discard anything else that is printed."""
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return replies


if __name__ == "__main__":
    sys.exit(main())
