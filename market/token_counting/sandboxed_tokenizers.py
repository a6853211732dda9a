"""Count with untrusted tokenizers in a separate process, which a bad tokenizer cannot harm beyond itself."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from accounting.errors import TextNotCounted
from accounting.metering.delivered import SEGMENT_CHARS, TokenCounter
from accounting.metering.tokenizers import Pinned
from market.errors import CountingUnavailable, TokenizerRefused
from market.protocol.counting.measure import SAMPLE
from market.token_counting.frames import (
    BATCH_CHARS,
    BATCH_SEGMENTS,
    CountingLimits,
    CountQuestion,
    CountReply,
    CountSegments,
    LoadTokenizer,
)
from market.token_counting.process import CountingProcess, Died, Stuck

REFUSED_MAX = 1024
_TURN_S = 120.0
_REPLY_S = 60.0
_PROBES = (SAMPLE, "a" * SEGMENT_CHARS, " " * SEGMENT_CHARS)


class SandboxedTokenizers:
    """Start the process when it is needed. Any thread may call it, and waits for its turn.

    A tokenizer that crashes the process, or takes too long, gets one more try in a fresh one, since the first may
    have been full. If that fails, too, the tokenizer is rejected, and texts are counted by their bytes from then
    on.
    """

    def __init__(self, limits: CountingLimits | None = None, reply_s: float = _REPLY_S) -> None:
        self._limits = limits or CountingLimits()
        self._reply_s = reply_s
        self._process: CountingProcess | None = None
        self._turn = threading.Lock()
        self._trial = threading.Lock()
        self._refused: dict[str, tuple[str, str]] = {}
        self._is_closed = False

    def counter(self, pinned: Pinned) -> TokenCounter:
        """Return a counter for this file, which is read when it is needed.

        It may also raise CountingUnavailable.
        """
        return _SandboxedCounter(self, pinned)

    def check(self, sha256: str) -> None:
        """Raises TokenizerRefused if this tokenizer was rejected before."""
        if (why := self._refused.get(sha256.lower())) is not None:
            raise TokenizerRefused(*why)

    def try_out(self, sha256: str, content: bytes) -> None:
        """Check a file, load it and count the longest texts with it, in a process that has loaded no other.

        Raises:
            TokenizerRefused: it is rejected, now and later.
            CountingUnavailable: it could not be tested now.
        """
        self.check(sha256)
        with _held(self._trial):
            process = self._started()
            try:
                self._load(process, sha256, content)
                for probe in _PROBES:
                    process.ask(CountSegments(sha256, [probe]), self._reply_s)
                self._adopt(process)
            except Died as died:
                self._refuse(sha256, "", f"is rejected: {died}")
            except Stuck as error:
                raise CountingUnavailable(str(error)) from None
            finally:
                if process is not self._process:
                    process.end()

    def count(self, pinned: Pinned, segments: Sequence[str]) -> list[int]:
        """Return each segment's number of tokens.

        Raises:
            TextNotCounted: the tokenizer fails on these texts, or is rejected.
            CountingUnavailable: nothing was counted, for a reason other than the tokenizer.
        """
        counts: list[int] = []
        try:
            for batch in _batches(segments):
                self.check(pinned.sha256)
                with _held(self._turn):
                    counts += self._counts(pinned, batch)
        except TokenizerRefused as error:
            raise TextNotCounted(str(error)) from None
        return counts

    def close(self) -> None:
        """End the process and stop counting; waiting callers get an error."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with _held(self._turn):
            self._end()

    @property
    def pid(self) -> int | None:
        """Return the process's pid, if there is one."""
        process = self._process
        return process.pid if process is not None and process.is_alive else None

    def _counts(self, pinned: Pinned, batch: list[str]) -> list[int]:
        try:
            return self._counts_once(pinned, batch)
        except Died:
            self._end()
        try:
            return self._counts_once(pinned, batch)
        except Died as died:
            self._end()
            self._refuse(pinned.sha256, "", f"is rejected from now on: {died}")

    def _counts_once(self, pinned: Pinned, batch: list[str]) -> list[int]:
        question = CountSegments(pinned.sha256, batch)
        reply = self._ask(question)
        if reply.trouble == "unknown":
            content = _read(pinned)
            try:
                self._load(self._running(), pinned.sha256, content)
            except Stuck as error:
                self._give_up(error)
            reply = self._ask(question)
        if reply.trouble == "failed":
            raise TextNotCounted(reply.problem)
        if len(reply.counts) != len(batch):
            raise Died("it returned a wrong number of counts")
        return reply.counts

    def _ask(self, question: CountQuestion) -> CountReply:
        try:
            return self._running().ask(question, self._reply_s)
        except Stuck as error:
            self._give_up(error)

    def _load(self, process: CountingProcess, sha256: str, content: bytes) -> None:
        reply = process.ask(LoadTokenizer(sha256, content), self._reply_s)
        if reply.trouble:
            self._refuse(sha256, reply.part, reply.problem)

    def _adopt(self, process: CountingProcess) -> None:
        """Use the process that tested a tokenizer if there is no other: it has the tokenizer loaded already."""
        with _held(self._turn):
            if not self._is_closed and self.pid is None:
                self._end()
                self._process = process

    def _running(self) -> CountingProcess:
        if self._process is None or not self._process.is_alive:
            self._end()
            self._process = self._started()
        return self._process

    def _started(self) -> CountingProcess:
        if self._is_closed:
            raise CountingUnavailable("counting was stopped")
        try:
            return CountingProcess(self._limits)
        except OSError as error:
            raise CountingUnavailable(f"no process can be started: {error}") from None

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _give_up(self, error: Stuck) -> NoReturn:
        self._end()
        raise CountingUnavailable(str(error)) from None

    def _refuse(self, sha256: str, part: str, problem: str) -> NoReturn:
        if len(self._refused) >= REFUSED_MAX:
            self._refused.pop(next(iter(self._refused)))
        self._refused[sha256.lower()] = part, problem
        raise TokenizerRefused(part, problem)


class _SandboxedCounter(TokenCounter):
    def __init__(self, sandbox: SandboxedTokenizers, pinned: Pinned) -> None:
        # Do not call the parent's constructor: the tokenizer is in another process.
        self._sandbox = sandbox
        self._pinned = pinned
        self.sha256 = pinned.sha256

    def segment_tokens(self, segments: Sequence[str]) -> list[int]:
        return self._sandbox.count(self._pinned, segments)


@contextmanager
def _held(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(timeout=_TURN_S):
        raise CountingUnavailable("too many texts are waiting to be counted")
    try:
        yield
    finally:
        lock.release()


def _batches(segments: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for segment in segments:
        if batch and (chars + len(segment) > BATCH_CHARS or len(batch) == BATCH_SEGMENTS):
            yield batch
            batch, chars = [], 0
        batch.append(segment)
        chars += len(segment)
    if batch:
        yield batch


def _read(pinned: Pinned) -> bytes:
    """Raises CountingUnavailable if the file is missing or was changed; a changed file is deleted, to be fetched
    again.
    """
    try:
        content = pinned.path.read_bytes()
    except OSError as error:
        raise CountingUnavailable(f"its tokenizer cannot be read: {type(error).__name__}") from None
    if hashlib.sha256(content).hexdigest() != pinned.sha256.lower():
        pinned.path.unlink(missing_ok=True)
        raise CountingUnavailable("its tokenizer file was changed on this machine")
    return content
