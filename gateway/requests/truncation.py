"""An answer that is cut short where what is paid for ends: what its caller gets in place of the rest."""

import asyncio

import structlog

from accounting.errors import TextNotCounted
from accounting.ledger.postings import Outcome
from gateway.billing.recount import Recounter
from gateway.errors import to_api_error
from gateway.lanes.base import Answer, Meter
from gateway.requests.client import Client
from gateway.requests.context import Trip
from gateway.requests.delivery import Heard
from gateway.requests.final_chunks import TRAILER, last_words
from gateway.requests.incremental_hold import PaidUp
from runtime.errors import LaneBrokeOff

log = structlog.get_logger(__name__)

_REASONS_MAX = 128
_SHARED = "the answer that was shared with another caller was not paid to its end; ask again"


async def cut_short(
    recounter: Recounter, trip: Trip, answer: Answer, client: Client, end: PaidUp
) -> tuple[Outcome, str]:
    """Say that the answer came to its limit, and why. Returns how the request ended, and the problem in words."""
    if trip.tally is None or trip.allowance is None:
        error = LaneBrokeOff(_SHARED)
        client.break_off(to_api_error(error))
        return "failed", str(error)
    meter, hearing = answer.meter, client if isinstance(client, Heard) else None
    await answer.body.close()
    if hearing:
        await hearing.arrive()
        hearing.tell(meter, trip.call, is_whole=False)
        await _count(recounter, trip, meter)
    choices = trip.allowance.choices
    client.write(last_words(trip.call, choices, trip.tally, meter, end.reason))
    if hearing:
        await hearing.arrive()
    client.finish(((TRAILER, end.reason.encode()),))
    meter.finish_reasons = ("length",) * min(choices, _REASONS_MAX)
    log.info("answer cut short", request_id=trip.call.id, reason=end.reason, tokens=meter.completion_tokens)
    return "interrupted", end.reason


async def _count(recounter: Recounter, trip: Trip, meter: Meter) -> None:
    """If the caller gets a count, it is the one that will be booked."""
    if not (trip.call.generation.wants_usage and meter.delivered and trip.offer):
        return
    try:
        counts = await asyncio.to_thread(recounter.count, trip.offer.counted_as, meter.delivered)
    except TextNotCounted as error:
        log.error("text not counted", request_id=trip.call.id, reason=str(error))
        return
    if counts:
        meter.completion_tokens = counts.completion_tokens
        meter.reasoning_tokens, meter.tool_tokens = counts.reasoning_tokens, counts.tool_tokens
