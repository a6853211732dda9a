"""Measure the CPU cost of an ended request: usage row, ledger event, log entry and metrics, over all threads."""

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine

from accounting.metering.prices import PricedModel
from accounting.money import Price
from accounting.rules.held import Payer
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.finished_request import Ending
from gateway.billing.ledger_service import LedgerService
from gateway.billing.request_log import RequestLog
from gateway.billing.spool import Spool
from gateway.dialects.openai import read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Meter, Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.context import Asked, DecidedCall, RequestContext
from gateway.requests.settlement import observe_answer, settle_request
from gateway.routing.decision import Candidate, Decision
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Load
from runtime.database import read_sessions, write_sessions
from runtime.request_ids import new_request_id

REQUESTS = 20_000
PAID = 2_000
# About as many as end at once in a busy gateway. Between them the event loop gets its turn.
_AT_ONCE = 20
_PAUSE_S = 0.002
_RAW = b'{"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}'
_CALLER = Caller("key_1234567890", "mr-12345", "ann", "lab", frozenset({"pool", "cloud"}))
_POOL = Offer("pool", "desk", "demo")
_CLOUD = Offer("cloud", "demo", "demo", price=PricedModel("cloud", "demo", "list", Price(0, 0, 10**9), "acme"))
_LOAD = Load(120, 0, 0, 3, None, is_resident=True, is_stream=False)
_METER = Meter(120, 0, 40, "upstream", is_complete=True)
_DONE = Ending(200, "complete")
_METRICS = Metrics.create()


def measure(name: str, engine: Engine) -> None:
    """Print a line for requests of own machines, and one for paid ones with their holds."""
    asyncio.run(_measure(name, engine))


async def _measure(name: str, engine: Engine) -> None:
    read, write = read_sessions(engine), write_sessions(engine)
    with tempfile.TemporaryDirectory() as folder:
        ledger, log = LedgerService(read, write), RequestLog(read, write)
        keeper = Bookkeeper(ledger, log, _METRICS, Spool(Path(folder) / "spool"))
        ledger.start()
        log.start()
        keeper.start()
        await ledger.credit("bench", "ann", 10**12, "bench")
        settling = [_settle_free(keeper, context) for context in _trips(_POOL, REQUESTS)]
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for first in range(0, REQUESTS, _AT_ONCE):
            for settle in settling[first : first + _AT_ONCE]:
                await settle
            await asyncio.sleep(_PAUSE_S)
        idle_s = REQUESTS // _AT_ONCE * await _turn_s()
        await _drained(keeper)
        _print(name, "settle and observe, free", REQUESTS, began_s, cpu_s + idle_s)
        trips = _trips(_CLOUD, PAID)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for first in range(0, PAID, _AT_ONCE):
            await asyncio.gather(
                *(_settle_paid(ledger, keeper, context) for context in trips[first : first + _AT_ONCE])
            )
        await _drained(keeper)
        _print(name, f"hold, settle and observe, {_AT_ONCE} at once", PAID, began_s, cpu_s)
        await keeper.stop()
        log.stop()
        await ledger.stop()


def _trips(offer: Offer, count: int) -> list[RequestContext]:
    predicted = Prediction(0.41, 0.0, 0.0, 0.03, 120, 0, 0.01, 12345, _LOAD)
    decision = Decision((Candidate(offer, predicted), Candidate(replace(offer, backend="shelf"), predicted)), ())
    request = read_request("chat", _RAW)
    calls = [Call(new_request_id(), "chat", request, _RAW) for _ in range(count)]
    return [
        RequestContext(
            call,
            _CALLER,
            time.time_ns(),
            time.perf_counter(),
            decision,
            decided=DecidedCall(call, 0.04),
            asked=Asked(offer),
        )
        for call in calls
    ]


async def _settle_free(keeper: Bookkeeper, context: RequestContext) -> None:
    observe_answer(_METRICS, context, _METER)
    settle_request(keeper, context, _METER, _DONE)


async def _settle_paid(ledger: LedgerService, keeper: Bookkeeper, context: RequestContext) -> None:
    context.hold = await ledger.hold(context.call.id, Payer("ann"), 100_000)
    observe_answer(_METRICS, context, _METER)
    settle_request(keeper, context, _METER, _DONE)


async def _turn_s() -> float:
    """Return what a turn of the event loop costs by itself, in seconds of CPU."""
    began_s = time.process_time()
    for _ in range(200):
        await asyncio.sleep(_PAUSE_S)
    return (time.process_time() - began_s) / 200


async def _drained(keeper: Bookkeeper) -> None:
    while keeper.waiting:  # noqa: ASYNC110  the booking thread signals nothing
        await asyncio.sleep(0.02)


def _print(name: str, what: str, count: int, began_s: float, cpu_s: float) -> None:
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(f"| {name} | {what} | | {count / took_s:.0f} | {1e6 * used_s / count:.1f} |")
