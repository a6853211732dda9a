"""The metrics over time, in memory: every 5 s for an hour, every minute for a day; empty after a start."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from accounting.ledger.postings import FROM_CACHE
from gateway.metrics.metrics import Metrics
from gateway.telemetry.slots import RingBuffer, Slot, of_all_lanes, percentile, spread_over, summed

if TYPE_CHECKING:
    from gateway.billing.settlement_worker import Booked

STEP_S = 5
_HOUR_SLOTS = 3600 // STEP_S
_MINUTE_S = 60
_DAY_SLOTS = 24 * 60
# Batches of ended requests between two samples: far more than the settlement worker can book.
_BATCHES_MAX = 10_000

FIRST_TOKEN, TOKEN = "first_token", "token"
FIRST_TOKEN_RATIO, TOKEN_RATIO = "first_token_ratio", "token_ratio"

# Tokens and seconds of work by lane and slot.
_Made = dict[tuple[str, int], tuple[float, float]]
_Spreads = dict[tuple[str, str], tuple[int, ...]]


class Load(Protocol):
    """The numbers of requests that are waiting and being answered."""

    def __call__(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """p50 and p95 over a period, in seconds; None without measurements.

    The ratios are the median of predicted over measured: 1 is exact, 2 predicts twice the actual time.
    """

    first_token_s: float | None
    first_token_high_s: float | None
    token_s: float | None
    token_high_s: float | None
    first_token_ratio: float | None
    token_ratio: float | None


@dataclass(frozen=True, slots=True)
class Recent:
    """A gateway's activity over the last `seconds`, up to the last sample. Rates are per second.

    `busy` is how many machines' worth of time answers took, by lane.
    """

    seconds: float
    tokens_per_s: dict[str, float]
    busy: dict[str, float]
    requests_per_s: float
    failed: int
    pace: Pace


class History:
    """Samples the metrics. One event loop owns it; `witness` may be called by any one thread.

    `clock` gives seconds since the epoch.
    """

    def __init__(self, metrics: Metrics, load: Load, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._load = load
        self._clock = clock
        self._buffers = (RingBuffer(STEP_S, _HOUR_SLOTS), RingBuffer(_MINUTE_S, _DAY_SLOTS))
        self._made: deque[_Made] = deque(maxlen=_BATCHES_MAX)
        self._requests: dict[tuple[str, ...], float] = {}
        self._spreads: _Spreads = {}
        self._task: asyncio.Task[None] | None = None
        self.since_s = clock()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="history")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def witness(self, batch: Iterable["Booked"]) -> None:
        """Note when tokens of ended requests were generated and computed: evenly from the first one to the end."""
        made: _Made = {}
        for ended, _ in batch:
            usage = ended.settlement.usage
            tokens, busy_s = usage.completion_tokens, usage.compute_nano / 1e9
            if usage.lane == FROM_CACHE or not (tokens or busy_s):
                continue
            begin_s = usage.started_ns / 1e9
            end_s = begin_s + usage.duration_ms / 1000
            if ended.is_stream and usage.ttft_ms is not None:
                begin_s += usage.ttft_ms / 1000
            for number, share in spread_over(begin_s, end_s, STEP_S):
                before_tokens, before_s = made.get((usage.lane, number), (0.0, 0.0))
                made[usage.lane, number] = before_tokens + share * tokens, before_s + share * busy_s
        self._made.append(made)

    def sample(self) -> None:
        """Take the counts since the last sample."""
        now_s = self._clock()
        while self._made:
            for (lane, number), (tokens, busy_s) in self._made.popleft().items():
                self._add(number * STEP_S, now_s, Slot(0, tokens={lane: tokens}, busy_s={lane: busy_s}))
        # The sample is taken at a slot's end, so it belongs to the slot that has just ended.
        self._add(now_s - STEP_S / 2, now_s, self._since_last())

    def recent(self, seconds: int = _MINUTE_S) -> Recent:
        """Return the activity over the last `seconds`, or since the start if that is less."""
        slots = self.last(seconds)
        total = summed(slots)
        lasted_s = min(len(slots) * self._buffer(seconds).step_s, max(float(STEP_S), self._clock() - self.since_s))
        return Recent(
            lasted_s,
            {lane: tokens / lasted_s for lane, tokens in total.tokens.items()},
            {lane: busy_s / lasted_s for lane, busy_s in total.busy_s.items()},
            sum(total.requests.values()) / lasted_s,
            total.failed,
            self.pace(total),
        )

    def last(self, seconds: int) -> list[Slot]:
        """Return the slots of the last `seconds`, oldest first: 5 s long within the hour, else a minute."""
        buffer = self._buffer(seconds)
        return buffer.last(max(1, seconds // buffer.step_s), self._clock())

    def step_s(self, seconds: int) -> int:
        """Return the length of those slots, in seconds."""
        return self._buffer(seconds).step_s

    def pace(self, slot: Slot) -> Pace:
        metrics, spreads = self._metrics, slot.spreads
        first, token = of_all_lanes(spreads, FIRST_TOKEN), of_all_lanes(spreads, TOKEN)
        first_bounds, token_bounds = metrics.first_token_seconds.bounds, metrics.token_seconds.bounds
        ratio_bounds = metrics.token_error_ratio.bounds
        return Pace(
            percentile(first_bounds, first, 0.5),
            percentile(first_bounds, first, 0.95),
            percentile(token_bounds, token, 0.5),
            percentile(token_bounds, token, 0.95),
            percentile(ratio_bounds, of_all_lanes(spreads, FIRST_TOKEN_RATIO), 0.5),
            percentile(ratio_bounds, of_all_lanes(spreads, TOKEN_RATIO), 0.5),
        )

    def _buffer(self, seconds: int) -> RingBuffer:
        fine, coarse = self._buffers
        return fine if seconds <= fine.span_s else coarse

    def _add(self, time_s: float, now_s: float, what: Slot) -> None:
        for buffer in self._buffers:
            slot = buffer.at(buffer.number_of(time_s), buffer.number_of(now_s))
            if slot is not None:
                slot.add(what)

    def _since_last(self) -> Slot:
        before_requests, self._requests = self._requests, self._metrics.requests.counts()
        before, self._spreads = self._spreads, self._counted()
        found = Slot(0)
        found.waiting, found.in_flight = self._load()
        for (lane, outcome), count in self._requests.items():
            more = int(count - before_requests.get((lane, outcome), 0))
            if more:
                found.requests[lane] = found.requests.get(lane, 0) + more
                found.failed += more if outcome == "failed" else 0
        for name, counts in self._spreads.items():
            known = before.get(name)
            if counts != known:
                found.spreads[name] = counts if known is None else _less(counts, known)
        return found

    def _counted(self) -> _Spreads:
        metrics = self._metrics
        return {
            (name, labels[0]): counts
            for name, histogram in (
                (FIRST_TOKEN, metrics.first_token_seconds),
                (TOKEN, metrics.token_seconds),
                (FIRST_TOKEN_RATIO, metrics.first_token_error_ratio),
                (TOKEN_RATIO, metrics.token_error_ratio),
            )
            for labels, counts in histogram.counts().items()
        }

    async def _run(self) -> None:
        while True:
            # At the end of a slot, so that each sample belongs to one.
            await asyncio.sleep(STEP_S - self._clock() % STEP_S)
            self.sample()


def _less(counts: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(counts, before, strict=True))
