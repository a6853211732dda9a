"""A stream whose hold grows as it arrives: paid parts are passed on while more is reserved.

paid:  |------------512------------|----------1024----------|
said:  ==================>                                      at 75 % more is asked for, in the background
said:  ===========================|                             only at the border does the stream wait for it
"""

import asyncio
from collections import deque

import structlog
from msgspec import structs

from accounting.errors import LedgerError
from gateway.lanes.allowance import Allowance
from gateway.lanes.base import Answer, Out
from gateway.lanes.body import Body, Sink
from gateway.lanes.events import events_of
from gateway.lanes.json_body import ANSWER_BYTES_MAX
from gateway.lanes.usage import Meter
from gateway.requests.attempt import is_stream
from gateway.requests.context import RequestContext
from gateway.requests.holds import CutReason, RequestFunds
from gateway.requests.tally import Tally, part_of
from runtime.errors import LaneFailed, ServiceError

log = structlog.get_logger(__name__)

# Percentage of the paid amount that may be used before more is requested.
_USED_PERCENT = 75
# How long a stream waits at the end of its paid part if the ledger does not answer.
BORDER_S = 5.0
_LATE_S = 2.0


class PaidUp(ServiceError):
    """The answer has used its hold, and no more could be reserved."""

    def __init__(self, reason: CutReason) -> None:
        super().__init__(f"The answer ends at its paid part: {reason}.")
        self.reason: CutReason = reason


def rolled(funds: RequestFunds, context: RequestContext, answer: Answer) -> Answer:
    """The answer with a growing hold, if the hold does not cover its maximum."""
    allowance = context.allowance
    if allowance is None or context.hold is None or context.paid_tokens >= allowance.tokens_max:
        return answer
    if context.offer is None or context.offer.price is None:
        return answer
    if not is_stream(answer):
        return structs.replace(answer, body=_WholeBody(funds, context, allowance, answer))
    context.tally = Tally()
    return structs.replace(answer, body=RollingBody(funds, context, allowance, context.tally, answer))


class RollingBody:
    """The body of an answer that may cost more than its hold covers so far."""

    def __init__(
        self, funds: RequestFunds, context: RequestContext, allowance: Allowance, tally: Tally, answer: Answer
    ) -> None:
        self._funds = funds
        self._context = context
        self._allowance = allowance
        self._tally = tally
        self._body: Body = answer.body
        self._meter: Meter = answer.meter

    async def send(self, out: Out) -> None:
        """Raises PaidUp at the end of the paid part; the upstream is then stopped."""
        rolling = _Rolling(out, self._funds, self._context, self._allowance, self._tally)
        try:
            await self._body.send(rolling)
            await rolling.drain()
            await _cover_count(self._funds, self._context, self._allowance, self._meter)
        finally:
            await rolling.stop()

    async def close(self) -> None:
        await self._body.close()


class _WholeBody:
    """A whole answer received in place of a stream: its counted cost is reserved before it is sent."""

    def __init__(self, funds: RequestFunds, context: RequestContext, allowance: Allowance, answer: Answer) -> None:
        self._funds = funds
        self._context = context
        self._allowance = allowance
        self._answer = answer

    async def send(self, out: Out) -> None:
        gathered = _Gathered()
        await self._answer.body.send(gathered)
        if gathered.is_full:
            await gathered.drain()
        await _cover_count(self._funds, self._context, self._allowance, self._answer.meter)
        out.write(b"".join(gathered.chunks))

    async def close(self) -> None:
        await self._answer.body.close()


class _Gathered:
    """Buffers the bytes, up to the maximum size of an answer."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if not self.is_full:
            self.chunks.append(data)

    @property
    def is_full(self) -> bool:
        return self._size_bytes > ANSWER_BYTES_MAX

    async def drain(self) -> None:
        """Raises LaneFailed, because there will be no room."""
        raise LaneFailed(f"sent an answer longer than {ANSWER_BYTES_MAX} bytes")


async def _cover_count(funds: RequestFunds, context: RequestContext, allowance: Allowance, meter: Meter) -> None:
    """If the provider counted more than was visible, grow the hold to cover that too.

    If it cannot grow, the answer was delivered anyway, and this gateway bears the rest. That includes what the
    provider counts beyond the requested length.
    """
    price = context.offer.price if context.offer else None
    if price is None or context.hold is None:
        return
    counts = (meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens, meter.reasoning_tokens)
    reason = "beyond the requested length"
    try:
        counted_nano = price.charge_for(*counts)
        amount_nano = min(counted_nano, allowance.amount_nano(allowance.tokens_max))
        if amount_nano > context.hold.amount_nano:
            async with asyncio.timeout(_LATE_S):
                await funds.reserve_late(context, amount_nano)
        if counted_nano <= context.hold.amount_nano:
            return
    except (ServiceError, LedgerError, TimeoutError) as error:
        reason = str(error)
    log.warning("count exceeds the hold", request_id=context.call.id, reason=reason)


class _Rolling(Sink):
    """The sink of such an answer: forwards the paid part, and reserves more in time."""

    def __init__(
        self, out: Out, funds: RequestFunds, context: RequestContext, allowance: Allowance, tally: Tally
    ) -> None:
        super().__init__(out)
        self._funds = funds
        self._context = context
        self._allowance = allowance
        self._tally = tally
        self._waiting: deque[bytes] = deque()
        self._asking: asyncio.Task[CutReason | None] | None = None
        self._refusal: CutReason | None = None
        self._has_asked_here = False
        """Whether more was requested at the answer's current position."""

    def write(self, data: bytes) -> None:
        if self._is_all_paid and not self._waiting:
            self._out.write(data)
            return
        self._waiting.extend(filter(None, events_of(data)))
        self._pass()

    @property
    def is_full(self) -> bool:
        return bool(self._waiting) or self._out.is_full

    async def drain(self) -> None:
        """Raises PaidUp if the waiting part cannot be paid."""
        self._pass()  # More may have been reserved since the last write.
        while self._waiting:
            await self._wait_for_more()
            self._pass()
        if self._out.is_full:
            await self._out.drain()

    async def stop(self) -> None:
        """Reserve no more."""
        asking, self._asking = self._asking, None
        if asking:
            asking.cancel()
            await asyncio.wait((asking,))

    @property
    def _is_all_paid(self) -> bool:
        return self._context.paid_tokens >= self._allowance.tokens_max

    @property
    def _paid_tokens(self) -> int:
        """Return the paid tokens of all choices together. After the maximum is paid, events are not examined."""
        return self._context.paid_tokens * self._allowance.choices

    def _pass(self) -> None:
        waiting, passed = self._waiting, []
        while waiting and (self._is_all_paid or self._tally.take(waiting[0], self._paid_tokens)):
            passed.append(waiting.popleft())
        if passed:
            self._out.write(passed[0] if len(passed) == 1 else b"".join(passed))
        is_due = 100 * self._tally.tokens >= _USED_PERCENT * self._paid_tokens
        if is_due and self._asking is None and self._refusal is None and not self._is_all_paid:
            self._ask()

    def _ask(self) -> None:
        self._asking = asyncio.create_task(self._reserve_more(), name="hold grows")

    async def _reserve_more(self) -> CutReason | None:
        refusal: CutReason | None = "ledger_unavailable"
        try:
            refusal = await self._funds.reserve_more(self._context, self._allowance)
        except Exception:
            # The task's edge: the paid part stays paid even if reserving more failed.
            log.exception("hold not extended", request_id=self._context.call.id)
        self._asking, self._refusal = None, refusal
        if refusal is None:
            self._has_asked_here = False
        self._funds.metrics.hold_extensions.labels(refusal or "granted").inc()
        return refusal

    async def _wait_for_more(self) -> None:
        """Request the refused amount once more: other requests may have ended since."""
        if self._asking is None:
            if self._refusal and self._has_asked_here:
                self._pass_part()
                raise PaidUp(self._refusal)
            self._has_asked_here = True
            self._ask()
        assert self._asking
        done, _ = await asyncio.wait((self._asking,), timeout=BORDER_S)
        if not done:
            self._pass_part()
            raise PaidUp("ledger_unavailable")

    def _pass_part(self) -> None:
        """Forward the beginning of an event that exceeds the paid rest: some upstreams send only one event."""
        size_bytes = self._tally.bytes_left(self._paid_tokens)
        part = part_of(self._waiting[0], size_bytes)
        if part and not self._tally.take(part, self._paid_tokens):
            part = part_of(part, size_bytes // 2)  # digits and punctuation have twice as many tokens
            part = part if part and self._tally.take(part, self._paid_tokens) else None
        if part:
            self._out.write(part)
