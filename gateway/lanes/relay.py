"""Forwards an OpenAI-compatible upstream's answer byte for byte, and reads its usage meanwhile."""

import asyncio
import math
import time
from contextlib import AsyncExitStack

from gateway.dialects.openai import GENERATES, Kind
from gateway.errors import FirstByteLate, LaneBusy, LaneUnreachable
from gateway.lanes.base import Answer, Call, Meter, Out
from gateway.lanes.events import Reader, StreamReader
from gateway.lanes.json_body import WholeReader
from gateway.lanes.refusals import check_messages, failure_of, is_failure, raise_error
from gateway.lanes.upstream import Upstream
from runtime.errors import LaneBrokeOff, LaneFailed, LaneTimeout
from runtime.http.client import NoRoom, Unreachable
from runtime.http.origin import Origin
from runtime.http.upstream import Broken, Connection
from runtime.redaction import error_without_internals

# Whole answers up to this size are held until they are complete, so a backend that breaks off can be replaced.
HELD_BYTES_MAX = 2**20
# Other kinds may answer in sound or text, which is forwarded as it arrives.
_ANSWERED_IN_JSON: frozenset[Kind] = GENERATES | {"embedding"}
_ERROR_PATIENCE_S = 5.0
# A backend that takes this long to begin an answer is probed.
_DOUBTED_AFTER_S = 3.0


async def relay(
    upstream: Upstream, call: Call, body: bytes, owned: AsyncExitStack | None = None, *, until_s: float = math.inf
) -> Answer:
    """Send the call and return with the first bytes of its answer; closing the body also closes `owned`.

    It waits until `until_s` by `time.monotonic`, or slightly longer: the clock of all connections looks a few times a
    second. Connecting has a timeout of its own.

    Raises LaneFailed and its kinds: FirstByteLate after `until_s`, LaneUnreachable if nothing was sent, LaneBrokeOff
    if work may have begun. The caller decides whether to ask the next candidate. Raises RequestInvalid if the answer
    blames the request, MessagesRefused if a chat template does.
    """
    relayed = RelayBody(upstream, call, owned, until_s)
    try:
        origin, parts = upstream.request(call, body)
        is_reused = relayed.ask_idle(origin, parts)
        if not is_reused:
            await relayed.ask(origin, parts)
        while relayed.is_opening:
            await relayed.change()
        if is_reused and relayed.may_repeat:
            relayed = RelayBody(upstream, call, owned, until_s)
            await relayed.ask(origin, parts)
            while relayed.is_opening:
                await relayed.change()
        relayed.check_beginning()
    except BaseException:
        relayed.stop()
        if owned:
            await owned.aclose()
        raise
    return Answer(relayed.status, relayed.content_type, relayed, relayed.meter)


class RelayBody:
    """An answer in progress: bytes go from the connection to the caller directly, without a task in between."""

    # Initial values as class attributes, because every request creates an instance.
    status = 0
    content_type = ""
    _connection: Connection | None = None
    _out: Out | None = None
    _waiting: asyncio.Future[None] | None = None
    _held_bytes = 0
    _holds_whole = False
    _is_cut = False
    _is_over = False
    _is_paused = False
    _is_closed = False
    _is_doubted = False
    _is_open = False
    _has_begun = False
    _broken: Broken | None = None
    _problem: LaneFailed | None = None
    _retry_after: bytes | None = None

    def __init__(self, upstream: Upstream, call: Call, owned: AsyncExitStack | None, until_s: float) -> None:
        self.meter = Meter()
        self._upstream = upstream
        self._call = call
        self._owned = owned
        self._held: list[bytes] = []
        is_stream = call.request.stream and call.kind in GENERATES
        self._reader: Reader = (
            StreamReader(call, is_paid=upstream.is_paid)
            if is_stream
            else WholeReader(call, 200, is_paid=upstream.is_paid)
        )
        self._until_s = until_s
        self._began_s = self._heard_s = time.monotonic()

    def ask_idle(self, origin: Origin, parts: list[bytes]) -> bool:
        """Send the call over an idle connection. Return whether there was one."""
        self._connection = self._upstream.client.ask_idle(origin, parts, self)
        return self._connection is not None

    async def ask(self, origin: Origin, parts: list[bytes]) -> None:
        """Send the call over a new connection. Raises LaneUnreachable, LaneBusy."""
        try:
            self._connection = await self._upstream.client.ask(origin, parts, self, is_fresh=True)
        except Unreachable as error:
            raise LaneUnreachable(f"{self._upstream.name} cannot be reached: {error}") from None
        except NoRoom as error:
            raise LaneBusy(f"{self._upstream.name} is busy: {error}") from None

    @property
    def is_opening(self) -> bool:
        """Whether there is nothing to forward yet, nor an end."""
        return not self._is_over and (not self._held or self._is_holding)

    @property
    def may_repeat(self) -> bool:
        """Whether the call may be sent again, over another connection, because the backend did not take it."""
        broken = self._broken
        return broken is not None and (broken.is_unread or (broken.is_stale and not self._upstream.is_paid))

    async def send(self, out: Out) -> None:
        """Send the answer as it arrives. Raises LaneFailed, such as LaneBrokeOff if the answer ends early."""
        try:
            self._out = out
            for chunk in self._held:
                out.write(chunk)
            self._held.clear()
            while not self._is_over:
                if out.is_full:
                    self._pause()
                    await out.drain()
                self._resume()
                if not out.is_full:
                    await self.change()
            if self._problem:
                raise self._problem
        finally:
            await self.close()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        self._reader.fill(self.meter)
        if self._is_cut:
            # Charge the part that arrived, and store nothing for other requests.
            self.meter.is_complete = False
        if self._owned:
            await self._owned.aclose()

    # Callbacks of the connection.

    def take_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        content_type = headers.get(b"content-type", b"application/json")
        self.status = status
        self.content_type = content_type.decode("latin-1")
        if status != 200:
            self._retry_after = headers.get(b"retry-after")
        if self._upstream.is_ours:
            if (prompt_tokens := headers.get(b"x-millrace-prompt-tokens", b"")).isdigit():
                self.meter.prompt_tokens = int(prompt_tokens)
            self._is_cut = b"x-millrace-cut" in headers
        reader, is_json = self._reader, b"json" in content_type
        if not isinstance(reader, WholeReader) and (status != 200 or is_json):
            # an error, or a server that does not stream
            reader = self._reader = WholeReader(self._call, status, is_paid=self._upstream.is_paid)
        if isinstance(reader, WholeReader):
            reader.status = status
            reader.is_json = is_json = is_json or self._call.kind in _ANSWERED_IN_JSON
            self._holds_whole = status != 200 or is_json
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            # Encoded bytes cannot be read in passing, and the caller has not named the encodings that it supports.
            self._break(LaneFailed(f"{self._upstream.name} answers in an encoding that it was not asked for"))

    def take(self, data: bytes) -> None:
        try:
            passed = self._reader.feed(data)
        except LaneFailed as error:
            self._break(LaneBrokeOff(f"{self._upstream.name} {error}"))
            return
        # Inlined, because it runs for every event of every stream.
        if (out := self._out) is None:
            self._has_begun = True
            if passed:
                self._hold(passed)
        elif passed:
            out.write(passed)
            if out.is_full:
                self._pause()
                self._wake()

    def end(self, broken: Broken | None) -> None:
        self._is_over = True
        try:
            self._take_end(broken)
        finally:
            self._wake()

    def _take_end(self, broken: Broken | None) -> None:
        name = self._upstream.name
        if broken is None:
            if last := self._reader.end():
                self._pass(last)
            if isinstance(self._reader, WholeReader) and self._reader.rewritten and self._is_holding:
                self._held = [self._reader.rewritten]
            if not self._reader.is_whole:
                self._problem = LaneBrokeOff(f"{name} ended in the middle of its answer")
        elif self._reader.is_whole:
            pass  # nothing can follow [DONE] or an error
        elif self._has_begun:
            self._problem = LaneBrokeOff(f"{name} was interrupted: {broken.reason}")
        else:
            self._broken = broken
            text = f"{name} received the request and closed the connection before it answered: {broken.reason}"
            self._problem = LaneBrokeOff(text)

    def look_at_clock(self, now_s: float, *, is_heard: bool) -> None:
        if is_heard or self._is_paused:
            self._heard_s = now_s
        upstream, waited_s, silent_s = self._upstream, now_s - self._began_s, now_s - self._heard_s
        if waited_s > _DOUBTED_AFTER_S and upstream.doubt and not (self._is_open or self._is_doubted):
            self._is_doubted = True
            upstream.doubt()
        if waited_s > upstream.total_s:
            self._break(LaneTimeout(f"{upstream.name} was not done within {upstream.total_s:.0f} s"))
        elif now_s > self._until_s and not self._is_open:
            self._break(FirstByteLate(f"{upstream.name} did not answer within {waited_s:.0f} s"))
        elif not self._has_begun:
            if waited_s > upstream.first_byte_s:
                self._break(LaneTimeout(f"{upstream.name} did not answer within {upstream.first_byte_s:.0f} s"))
        elif silent_s > upstream.silence_s or (silent_s > _ERROR_PATIENCE_S and is_failure(self.status)):
            self._break(LaneTimeout(f"{upstream.name} sent nothing for {silent_s:.0f} s"))

    @property
    def _is_holding(self) -> bool:
        return self._holds_whole and self._held_bytes <= HELD_BYTES_MAX

    def _pass(self, data: bytes) -> None:
        if self._out is None:
            self._hold(data)
        else:
            self._out.write(data)

    def _hold(self, data: bytes) -> None:
        """Buffer the bytes until a reader takes them."""
        self._held.append(data)
        self._held_bytes += len(data)
        is_much = self._held_bytes > HELD_BYTES_MAX
        if is_much or not self._holds_whole:
            self._wake()
        if is_much:
            self._pause()

    def check_beginning(self) -> None:
        """Check whether this is an answer at all; otherwise raise the matching error."""
        if self.status != 200:
            self._check_status()
        elif error := self._reader.refusal:
            raise_error(self._upstream.name, error)
        # If the caller got no part of a broken answer, another backend can be asked. A paid answer is delivered as
        # far as it came.
        if self._problem and (not self._held or self._holds_whole or not self._upstream.is_paid):
            raise self._problem
        self._is_open = True

    def _check_status(self) -> None:
        if self.status >= 400 and self._call.kind == "chat" and not self._upstream.is_paid:
            check_messages(self._upstream.name, b"".join(self._held))
        if is_failure(self.status):
            raise failure_of(self._upstream.name, self.status, b"".join(self._held), self._retry_after)
        if self.status >= 400 and self._is_holding:
            self._held = [error_without_internals(b"".join(self._held))]

    def change(self) -> asyncio.Future[None]:
        """Return a future that ends when the answer needs attention."""
        assert self._connection
        self._waiting = waiting = self._connection.loop.create_future()
        return waiting

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _pause(self) -> None:
        if self._connection and not self._is_over and not self._is_paused:
            self._is_paused = True
            self._connection.pause()

    def _resume(self) -> None:
        if self._connection and not self._is_over and self._is_paused:
            self._is_paused = False
            self._connection.resume()

    def _break(self, problem: LaneFailed) -> None:
        self._problem = problem
        self.stop()
        self._wake()

    def stop(self) -> None:
        """Stop the upstream's work, if it has not ended."""
        if self._connection and not self._is_over:
            self._connection.abort()
        self._is_over = True
