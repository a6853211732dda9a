"""What every request leaves behind: its ledger event with a usage row, its log entry, metrics, health."""

import asyncio
import time
from dataclasses import dataclass

import structlog

from accounting.errors import LedgerError
from accounting.money import charge
from accounting.postings import Outcome, UsageRecord
from accounting.rules import CloudBill, Hold
from gateway.books import Books
from gateway.identity.caller import Caller
from gateway.lane_health import LaneHealth
from gateway.lanes.base import Call, Meter, Offer
from gateway.observability import Metrics
from gateway.request_log import RequestEntry, RequestLog
from gateway.routing import Decision

log = structlog.get_logger(__name__)

NO_LANE = "none"


@dataclass(slots=True)
class Trip:
    """What is known of a request so far. Times are perf_counter seconds, `started_ns` wall clock."""

    call: Call
    caller: Caller
    decision: Decision
    started_ns: int
    began_s: float
    offer: Offer | None = None
    hold: Hold | None = None
    first_byte_s: float | None = None

    @classmethod
    def begin(cls, call: Call, caller: Caller, decision: Decision) -> "Trip":
        return cls(call, caller, decision, time.time_ns(), time.perf_counter())

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began_s


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended: the status sent, whether the answer was whole, what went wrong in words."""

    status: int
    outcome: Outcome
    problem: str = ""


class Bookkeeper:
    """Settles requests behind their answers' backs; owns the tasks that do so."""

    def __init__(self, books: Books, request_log: RequestLog, metrics: Metrics, health: LaneHealth) -> None:
        self._books = books
        self._request_log = request_log
        self._metrics = metrics
        self._health = health
        self._settling: set[asyncio.Task[None]] = set()

    def settle(self, trip: Trip, meter: Meter, ending: Ending) -> None:
        """Everything that follows a request. Nobody waits for it but `stop`."""
        task = asyncio.create_task(self._settle(trip, meter, ending), name=f"settle {trip.call.id}")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def stop(self) -> None:
        await asyncio.gather(*self._settling, return_exceptions=True)

    def observe(self, trip: Trip, meter: Meter, ending: Ending) -> None:
        """How the backend did; for requests that a backend began to answer."""
        assert trip.offer
        label, duration_s = trip.offer.label, trip.elapsed_s
        if ending.outcome == "complete":
            self._health.succeeded(label, trip.first_byte_s, duration_s, meter.completion_tokens)
        elif ending.outcome == "failed" and ending.status == 200:
            self._health.failed(label)
        else:
            self._health.left(label)
        self._metrics.request_seconds.labels(trip.offer.lane).observe(duration_s)
        if trip.first_byte_s is not None:
            self._metrics.first_token_seconds.labels(trip.offer.lane).observe(trip.first_byte_s)
        self._metrics.tokens.labels(trip.offer.lane, "prompt").inc(meter.prompt_tokens)
        self._metrics.tokens.labels(trip.offer.lane, "completion").inc(meter.completion_tokens)

    async def _settle(self, trip: Trip, meter: Meter, ending: Ending) -> None:
        lane = trip.offer.lane if trip.offer else NO_LANE
        usage = _usage(trip, meter, ending)
        charge_nano, event_seq = 0, None
        try:
            charge_nano, event_seq = await self._book(trip, meter, usage)
        except LedgerError as error:
            log.error("request not booked", request_id=trip.call.id, reason=str(error))
        self._metrics.requests.labels(lane, ending.outcome).inc()
        self._metrics.charged_nano.inc(charge_nano)
        self._request_log.add(_entry(trip, usage, ending, charge_nano, event_seq))
        log.info(
            "request",
            request_id=trip.call.id,
            key=trip.caller.key_prefix,
            model=usage.model,
            lane=lane,
            status=ending.status,
            outcome=ending.outcome,
            tokens=[meter.prompt_tokens, meter.completion_tokens],
            duration_ms=usage.duration_ms,
        )

    async def _book(self, trip: Trip, meter: Meter, usage: UsageRecord) -> tuple[int, int]:
        """(charge in nano-USD, event number): capture what was delivered, or release, or book local work."""
        if trip.hold is None:
            return 0, (await self._books.record(usage)).event_seq
        # Nothing delivered, nothing charged: not even the prompt.
        if not meter.completion_tokens or trip.offer is None or trip.offer.price is None:
            return 0, (await self._books.release(trip.hold, usage)).event_seq
        price = trip.offer.price.price_for(meter.prompt_tokens)
        cost_nano = charge(price, meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens)
        bill = CloudBill(trip.offer.price.provider, cost_nano, cost_nano)
        posted = await self._books.capture(trip.hold, bill, usage)
        return min(cost_nano, trip.hold.amount_nano), posted.event_seq


def _usage(trip: Trip, meter: Meter, ending: Ending) -> UsageRecord:
    offer = trip.offer
    duration_s = trip.elapsed_s
    compute_nano = meter.compute_ns
    if offer and offer.lane == "pool":
        # A backend that is not ours does not say how busy it was: the time it took stands for it.
        compute_nano = int(duration_s * 1e9)
    return UsageRecord(
        request_id=trip.call.id,
        user_id=trip.caller.user_id,
        department=trip.caller.department,
        key_id=trip.caller.key_id,
        model=trip.call.request.model,
        lane=offer.lane if offer else NO_LANE,
        provider=offer.price.provider if offer and offer.price else offer.backend if offer else NO_LANE,
        prompt_tokens=meter.prompt_tokens,
        cached_tokens=meter.cached_tokens,
        completion_tokens=meter.completion_tokens,
        count_source=meter.source,
        outcome=ending.outcome,
        started_ns=trip.started_ns,
        duration_ms=int(1000 * duration_s),
        ttft_ms=None if trip.first_byte_s is None else int(1000 * trip.first_byte_s),
        compute_nano=compute_nano,
    )


def _entry(
    trip: Trip, usage: UsageRecord, ending: Ending, charge_nano: int, event_seq: int | None
) -> RequestEntry:
    return RequestEntry(
        request_id=trip.call.id,
        started_ns=trip.started_ns,
        key_id=trip.caller.key_id,
        model=usage.model,
        kind=trip.call.kind,
        lane=usage.lane,
        backend=trip.offer.backend if trip.offer else NO_LANE,
        reason=trip.decision.reason,
        decision=trip.decision.as_data(),
        status=ending.status,
        outcome=ending.outcome,
        error=ending.problem,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_ms=usage.ttft_ms,
        duration_ms=usage.duration_ms,
        charge_nano=charge_nano,
        event_seq=event_seq,
    )
