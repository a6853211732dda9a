"""Ends an answer where its paid part ends, and tells the caller why."""

import asyncio
import time
from typing import Any

import msgspec
import structlog

from accounting.errors import TextNotCounted
from accounting.ledger.postings import Outcome
from gateway.billing.recount import Recounter
from gateway.dialects.openai import ChatRequest
from gateway.errors import to_api_error
from gateway.lanes.base import Answer, Call, Meter
from gateway.lanes.events import HEAD
from gateway.requests.client import Client
from gateway.requests.context import RequestContext
from gateway.requests.delivery import RecordingSink
from gateway.requests.holds import CutReason
from gateway.requests.incremental_hold import PaidUp
from gateway.requests.tally import Tally
from runtime.errors import LaneBrokeOff

log = structlog.get_logger(__name__)

TRAILER = b"x-millrace-ended"
_REASONS_MAX = 128
_SHARED = "the answer that was shared with another caller was not paid to its end; try again"


async def cut_short(
    recounter: Recounter, context: RequestContext, answer: Answer, client: Client, end: PaidUp
) -> tuple[Outcome, str]:
    """Send the end with the reason. Return how the request ended, and the problem in words."""
    if context.tally is None or context.allowance is None:
        error = LaneBrokeOff(_SHARED)
        client.break_off(to_api_error(error))
        return "failed", str(error)
    meter, hearing = answer.meter, client if isinstance(client, RecordingSink) else None
    await answer.body.close()
    if hearing:
        await hearing.arrive()
        hearing.tell(meter, context.call, is_whole=False)
        await _count(recounter, context, meter)
    choices = context.allowance.choices
    client.write(last_chunks(context.call, choices, context.tally, meter, end.reason))
    if hearing:
        await hearing.arrive()
    client.finish(((TRAILER, end.reason.encode()),))
    meter.finish_reasons = ("length",) * min(choices, _REASONS_MAX)
    log.info("answer cut short", request_id=context.call.id, reason=end.reason, tokens=meter.completion_tokens)
    return "interrupted", end.reason


async def _count(recounter: Recounter, context: RequestContext, meter: Meter) -> None:
    """Count the answer now if the caller gets a count, so that it equals the booked count."""
    if not (context.call.generation.wants_usage and meter.delivered and context.offer):
        return
    try:
        counts = await asyncio.to_thread(recounter.count, context.offer.counted_as, meter.delivered)
    except TextNotCounted as error:
        log.error("text not counted", request_id=context.call.id, reason=str(error))
        return
    if counts:
        meter.completion_tokens = counts.completion_tokens
        meter.reasoning_tokens, meter.tool_tokens = counts.reasoning_tokens, counts.tool_tokens


def last_chunks(call: Call, choices_count: int, tally: Tally, meter: Meter, reason: CutReason) -> bytes:
    """Return the last events in OpenAI's format.

    Each unfinished one of `choices_count` choices ends as `length`.
    """
    head = _head(call, tally)
    is_chat = isinstance(call.request, ChatRequest)
    empty: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    unfinished = [index for index in range(choices_count) if index not in tally.finished]
    choices = [{"index": index, **empty, "logprobs": None, "finish_reason": "length"} for index in unfinished]
    events = [head | {"choices": [choice]} for choice in choices] or [head | {"choices": []}]
    events[-1]["millrace"] = {"ended": reason}
    if call.generation.wants_usage:
        events.append(head | {"choices": [], "usage": meter.as_usage()})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"


def _head(call: Call, tally: Tally) -> dict[str, Any]:
    head = {name: tally.first[name] for name in HEAD if name in tally.first}
    if head:
        return head
    kind = "chat.completion.chunk" if isinstance(call.request, ChatRequest) else "text_completion"
    return {"id": call.id, "object": kind, "created": int(time.time()), "model": call.request.model}
