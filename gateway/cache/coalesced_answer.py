"""Request coalescing: one answer in progress, and all callers that asked for the same meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from msgspec import structs

from accounting.metering.delivered import Delivered
from gateway.lanes.base import Answer, Meter, Out
from gateway.lanes.transcript import Transcript
from runtime.errors import LaneBrokeOff

# Beyond this size no one can join, and the answer is not stored.
BYTES_MAX = 4 * 2**20
# The lead that the upstream may have over the slowest reader.
_AHEAD_BYTES = 2**20

OnWhole: TypeAlias = Callable[[Answer, bytes], None]


class CoalescedAnswer:
    """The leader's answer, kept from its first byte, so that later followers miss nothing.

    The upstream is asked once and writes into the flight, which passes every piece on at once. It continues while
    anyone reads, the leader or not; when no one does, it is stopped. `on_whole` is called with the bytes of a
    complete answer.
    """

    def __init__(self, on_whole: OnWhole) -> None:
        self._on_whole = on_whole
        self._opened: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._readers: list[_Reader] = []
        self._is_paid = False
        self._untold: deque[bytes] | None = None
        """The part of a paid answer that no follower has taken yet."""
        self._told_bytes = 0
        self._told = Transcript()
        self._joining = 0
        self._error: Exception | None = None
        self._stirred = asyncio.Event()
        self.has_failed = False
        self.is_over = False

    @property
    def takes_more(self) -> bool:
        """Return whether a caller may still join, which always gives it the answer from the start."""
        return not self.is_over and self._kept_bytes <= BYTES_MAX

    def lead(self, answer: Answer, *, is_paid: bool = False) -> Answer:
        """Return the leader's own share of its answer; from now on others can read it, too.

        The leader pays for what reached any caller, since followers only waited along. If the answer `is_paid`,
        the part that the furthest follower received is remembered.
        """
        self._is_paid = is_paid
        if is_paid:
            self._untold = deque()
        self._opened.set_result(answer)
        return structs.replace(answer, body=_Leading(self, answer))

    def abandon(self, *, has_failed: bool = False) -> None:
        """Note that the leader has no answer; its followers ask again."""
        if not self._opened.done():
            self.has_failed = has_failed
            self._opened.set_result(None)
            self.is_over = True
        else:
            self.stop()

    def stop(self) -> None:
        """Stop the answer: readers get an error that it broke off, and no one can join any more."""
        if not self.is_over:
            self._error = LaneBrokeOff("the answer that was shared with others was stopped")
            self._end()

    async def follow(self) -> Answer | None:
        """Return the same answer for a follower; None if the leader got none, or it is already too long."""
        self._joining += 1
        try:
            answer = await asyncio.shield(self._opened)
        except BaseException:
            self.leave()
            raise
        # Followers that waited may have it even if it is complete by now: all of it is there.
        if answer is None or self._error or self._kept_bytes > BYTES_MAX:
            self.has_failed = self.has_failed or self._error is not None
            self.leave()
            return None
        meter = Meter(source=answer.meter.source)
        return Answer(answer.status, answer.content_type, _Following(self, answer.meter, meter), meter)

    def leave(self) -> None:
        """Note that a follower is done."""
        self._joining -= 1
        self._stirred.set()

    async def fly(self, answer: Answer) -> None:
        """Pass the upstream's answer to all readers, until its end or until it is stopped."""
        try:
            await answer.body.send(self)
            if self._kept_bytes <= BYTES_MAX and answer.meter.is_complete:
                self._on_whole(answer, b"".join(self._kept))
        except Exception as error:  # noqa: BLE001 - a task's edge: every reader raises it again
            self._error = error
        except BaseException:
            self.stop()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        for reader in self._readers:
            reader.end()
        self._stirred.set()

    def told(self) -> tuple[Delivered, ...]:
        """Return the part of a paid answer that the furthest follower received."""
        return self._told.choices() if self._told_bytes else ()

    def note_taken(self, taken_bytes: int) -> None:
        """Note how many bytes a follower has taken."""
        untold = self._untold
        while untold and self._told_bytes + len(untold[0]) <= taken_bytes:
            data = untold.popleft()
            self._told_bytes += len(data)
            self._told.add(data)

    # Written to by the upstream's answer.

    def write(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes <= BYTES_MAX:
            self._kept.append(data)
        else:
            self._kept.clear()
        if self._untold is not None:
            self._untold.append(data)
            if not self.takes_more and not self._joining:
                self._untold = None  # no follower will ever read it
        for reader in self._readers:
            reader.take(data)

    @property
    def is_full(self) -> bool:
        lags_bytes = [reader.lag_bytes for reader in self._readers]
        if self._is_paid and min(lags_bytes, default=0):
            return True  # unread data would still be charged
        return max(lags_bytes, default=0) > _AHEAD_BYTES

    async def drain(self) -> None:
        while self.is_full:
            await self._stir()

    # Called by readers.

    async def read_to(self, out: Out, *, is_leader: bool = False) -> None:
        """Write everything from the first byte on to `out`; raises the error with which the answer broke off."""
        reader = _Reader(out, self._kept, self._stirred, None if is_leader else self.note_taken)
        self._readers.append(reader)
        if self.is_over:
            reader.end()
        try:
            await reader.read()
            if self._error is not None:
                # All readers share one error, so each raises it without the others' tracebacks.
                raise self._error.with_traceback(None)
        finally:
            self._readers.remove(reader)
            self._stirred.set()

    async def wait_while_read(self) -> None:
        """Wait until the answer is over or has no readers."""
        while (self._readers or self._joining) and not self.is_over:
            await self._stir()

    async def _stir(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()


class _Reader:
    """One reader; data that its caller has not taken yet waits here."""

    def __init__(
        self, out: Out, so_far: list[bytes], stirred: asyncio.Event, note_taken: Callable[[int], None] | None
    ) -> None:
        self._out = out
        self._lag = deque(so_far)
        self.lag_bytes = sum(map(len, so_far))
        self._stirred = stirred
        self._note_taken = note_taken
        self._taken_bytes = 0
        self._news = asyncio.Event()
        self._is_over = False

    def take(self, data: bytes) -> None:
        if self._lag or self._out.is_full:
            self._lag.append(data)
            self.lag_bytes += len(data)
            self._news.set()
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._taken_bytes += len(data)
        if self._note_taken:
            self._note_taken(self._taken_bytes)

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def read(self) -> None:
        while True:
            while self._lag:
                if self._out.is_full:
                    await self._out.drain()
                data = self._lag.popleft()
                self.lag_bytes -= len(data)
                self._write(data)
                self._stirred.set()
            if self._is_over:
                return
            self._news.clear()
            await self._news.wait()


class _Leading:
    """The leader's body. If its caller leaves, the answer continues for its followers."""

    def __init__(self, flight: CoalescedAnswer, answer: Answer) -> None:
        self._flight = flight
        self._answer = answer

    async def send(self, out: Out) -> None:
        flight = self._flight
        flying = asyncio.create_task(flight.fly(self._answer), name="shared answer")
        try:
            await flight.read_to(out, is_leader=True)
        except asyncio.CancelledError:
            await flight.wait_while_read()
            if not flight.is_over:
                raise
            # The cancellation is handled: the other followers got the answer.
            if task := asyncio.current_task():
                task.uncancel()
        finally:
            if not flight.is_over:
                # At once, so that no one joins an answer that is being closed.
                flight.stop()
                flying.cancel()
            await asyncio.gather(flying, return_exceptions=True)

    async def close(self) -> None:
        self._flight.abandon()
        await self._answer.body.close()


class _Following:
    """A follower's body: reads from the flight. Its meter copies the leader's."""

    def __init__(self, flight: CoalescedAnswer, leaders: Meter, meter: Meter) -> None:
        self._flight = flight
        self._leaders = leaders
        self._meter = meter
        self._is_joining = True

    async def send(self, out: Out) -> None:
        try:
            await self._flight.read_to(out)
            self._meter.is_complete = self._leaders.is_complete
        finally:
            self._meter.take(self._leaders)
            self._meter.cached_tokens = self._leaders.prompt_tokens

    async def close(self) -> None:
        """Leave the flight; nothing else needs closing."""
        if self._is_joining:
            self._is_joining = False
            self._flight.leave()
