"""What every request leaves behind: its ledger event with a usage row, its log entry, metrics, health."""

import asyncio

import structlog

from accounting.errors import BooksUnavailable, LedgerError
from accounting.money import MAX_TOKENS, charge
from accounting.postings import Posted, UsageRecord
from accounting.rules import CloudBill
from gateway.journey.trip import Ending, Trip
from gateway.lanes.base import Meter
from gateway.observability.metrics import Metrics
from gateway.records.books import Books
from gateway.records.request_log import RequestEntry, RequestLog
from gateway.records.spool import Settlement, Spool
from gateway.routing.health import LaneHealth

log = structlog.get_logger(__name__)

NO_LANE = "none"
# No request keeps more machines busy all its time.
_STAGES_MAX = 1024

# Between tries, doubling: a database that restarts is back within them.
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 0.0)
# So many settlements may wait for a database at once; beyond it they go to the spool after one try.
_SETTLING_MAX = 4096
_STOP_S = 10.0
_REPLAY_EVERY_S = 30.0
_REPLAYED_AT_ONCE = 100


class Bookkeeper:
    """Settles requests behind their answers' backs; owns the tasks that do so.

    While the books do not answer, a settlement is tried again with pauses, always under its own key; what they
    have not taken by then goes to the spool, which is emptied into the books now and then, first at the start.
    """

    def __init__(
        self, books: Books, request_log: RequestLog, metrics: Metrics, health: LaneHealth, spool: Spool
    ) -> None:
        self._books = books
        self._request_log = request_log
        self._metrics = metrics
        self._health = health
        self._spool = spool
        self._settling: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._replaying: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._replaying = asyncio.create_task(self._replay(), name="spool replay")

    def settle(self, trip: Trip, meter: Meter, ending: Ending) -> None:
        """Everything that follows a request. Nobody waits for it but `stop`."""
        if self._stopping.is_set():
            # The books may be closed already; the next start books it.
            self._spool.add(_settlement(trip, meter, ending))
            return
        task = asyncio.create_task(self._settle(trip, meter, ending), name=f"settle {trip.call.id}")
        self._settling.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """What is being settled is booked or on disk afterwards; so is what ends from now on."""
        self._stopping.set()
        if self._replaying:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        if self._settling:
            _, late = await asyncio.wait(self._settling, timeout=_STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("request not settled", task=task.get_name(), exc_info=error)

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
        settlement = _settlement(trip, meter, ending)
        usage, charge_nano, event_seq = settlement.usage, 0, None
        try:
            if posted := await self._book(settlement):
                charge_nano, event_seq = settlement.charge_nano, posted.event_seq
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

    async def _book(self, settlement: Settlement) -> Posted | None:
        """The books' answer; None where an earlier try was booked, or where the spool has the settlement now."""
        try:
            for pause_s in _PAUSES_S if len(self._settling) <= _SETTLING_MAX else _PAUSES_S[:1]:
                try:
                    return await self._books.settle(settlement)
                except BooksUnavailable as error:
                    log.warning("books unavailable", request_id=settlement.usage.request_id, reason=str(error))
                if await self._is_stopping_within(pause_s):
                    break
        except asyncio.CancelledError:
            # Booked or not, nobody knows: booking it again under its key finds out.
            self._spool.add(settlement)
            raise
        await asyncio.to_thread(self._spool.add, settlement)
        return None

    async def _is_stopping_within(self, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    async def _replay(self) -> None:
        """Empty the spool into the books, again and again: what an outage left, and what the last process left."""
        while True:
            try:
                await self._replay_once()
            except Exception:
                # The task's edge: a disk that is broken now may be mended later.
                log.exception("spool not replayed")
            await asyncio.sleep(_REPLAY_EVERY_S)

    async def _replay_once(self) -> None:
        spooled = await asyncio.to_thread(self._spool.read)
        for start in range(0, len(spooled), _REPLAYED_AT_ONCE):
            some = spooled[start : start + _REPLAYED_AT_ONCE]
            booked = await asyncio.gather(*(self._is_booked(entry.settlement) for entry in some))
            lines = {entry.line for entry, done in zip(some, booked, strict=True) if done}
            if not lines:
                return
            await asyncio.to_thread(self._spool.remove, lines)
            log.info("spooled requests booked", count=len(lines))

    async def _is_booked(self, settlement: Settlement) -> bool:
        """Whether there is nothing left to do for a spooled settlement."""
        try:
            if await self._books.settle(settlement):
                self._metrics.charged_nano.inc(settlement.charge_nano)
        except BooksUnavailable:
            return False
        except LedgerError as error:
            request_id, charge_nano = settlement.usage.request_id, settlement.charge_nano
            log.error("request not booked", request_id=request_id, charge_nano=charge_nano, reason=str(error))
        return True


def _settlement(trip: Trip, meter: Meter, ending: Ending) -> Settlement:
    """Capture what a provider delivered, else release; without a hold only the usage row."""
    usage = _usage(trip, meter, ending)
    price = trip.offer.price if trip.offer else None
    # Nothing delivered, nothing charged: not even the prompt. And own machines charge nothing.
    if trip.hold is None or price is None or not usage.completion_tokens:
        return Settlement(usage, trip.hold)
    tokens = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    cost_nano = charge(price.price_for(usage.prompt_tokens), *tokens)
    return Settlement(usage, trip.hold, CloudBill(price.provider, cost_nano, cost_nano, price.version))


def _usage(trip: Trip, meter: Meter, ending: Ending) -> UsageRecord:
    offer = trip.offer
    duration_s = trip.elapsed_s
    compute_nano = meter.compute_ns
    if offer and offer.lane == "pool" and ending.outcome in ("complete", "interrupted"):
        # A backend that is not ours does not say how busy it was: the time it took stands for it.
        compute_nano = int(duration_s * 1e9)
    # Upstreams count themselves, and some count nonsense: no request is booked with what none can have.
    prompt_tokens = _between(0, meter.prompt_tokens, MAX_TOKENS)
    return UsageRecord(
        request_id=trip.call.id,
        user_id=trip.caller.user_id,
        department=trip.caller.department,
        key_id=trip.caller.key_id,
        model=trip.call.request.model,
        lane=offer.lane if offer else NO_LANE,
        provider=offer.price.provider if offer and offer.price else offer.backend if offer else NO_LANE,
        prompt_tokens=prompt_tokens,
        cached_tokens=_between(0, meter.cached_tokens, prompt_tokens),
        completion_tokens=_between(0, meter.completion_tokens, MAX_TOKENS),
        count_source=meter.source,
        outcome=ending.outcome,
        started_ns=trip.started_ns,
        duration_ms=int(1000 * duration_s),
        ttft_ms=None if trip.first_byte_s is None else int(1000 * trip.first_byte_s),
        compute_nano=_between(0, compute_nano, int(duration_s * 1e9) * _STAGES_MAX),
    )


def _between(least: int, number: int, most: int) -> int:
    return max(least, min(number, most))


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
