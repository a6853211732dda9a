"""Continues a broken stream at another backend, from the text so far.

Only for requests that ask for it: another model, or the same one with other sampling, continues where the first
stopped. Never across costs: both backends are free of charge. Never with tools, schemas, log-probabilities or
several choices, because half of such an answer cannot be continued.
"""

from functools import partial

import structlog

from cluster.errors import GenerationError
from gateway.dialects.openai import GENERATES, ChatRequest, CompletionRequest
from gateway.lanes.base import Answer, Call, Meter, Offer, Out
from gateway.lanes.features import HINTS
from gateway.requests.context import RequestContext
from gateway.requests.failover_target import FailoverTargets, keeping_awake
from gateway.requests.stream_stitching import JoinedStream, RememberedStream, next_call
from runtime.errors import LaneFailed

log = structlog.get_logger(__name__)

_TIMES_MAX = 2


def continues(call: Call) -> bool:
    """Return whether a broken stream of this call is continued; for nearly all calls, one check says no."""
    extras = call.request.millrace
    return extras is not None and extras.continue_on_failure and _can_be_joined(call)


async def send_on(targets: FailoverTargets, context: RequestContext, answer: Answer, out: Out) -> None:
    """Send an answer; if it breaks off, continue at another backend. `answer.meter` has the sum at the end.

    Raises the last backend's error.
    """
    stream = RememberedStream(out)
    writer: Out = stream
    part = answer
    failed: set[str] = set()
    while True:
        try:
            await part.body.send(writer)
            return
        except (LaneFailed, GenerationError) as error:
            broken = context.offer
            failed.add(broken.label if broken else "")
            more = await _rest(targets, context, stream, failed)
            if more is None:
                raise
            targets.note_error(broken, error)  # the handler of a raised error records it
            backend = context.offer.label if context.offer else ""
            log.warning("answer interrupted", request_id=context.call.id, reason=str(error), continued_on=backend)
        finally:
            if part is not answer:
                await part.body.close()
                _add(answer.meter, part.meter)
        stream.note(f"continued on {backend}")
        part, writer = more, JoinedStream(stream)


async def _rest(
    targets: FailoverTargets, context: RequestContext, stream: RememberedStream, failed: set[str]
) -> Answer | None:
    if context.dispatch:
        context.dispatch.failed()
    if len(failed) > _TIMES_MAX or not stream.can_go_on:
        return None
    call = next_call(context.call, stream)
    decision = targets.decide(context.caller, call)
    with keeping_awake(stream.note):
        return await targets.open(context, call, decision, failed, partial(_may_go_on, context))


def _add(sum_: Meter, part: Meter) -> None:
    """Note a further part, whose prompt was the first prompt and the text so far."""
    sum_.completion_tokens += part.completion_tokens
    sum_.compute_ns += part.compute_ns
    sum_.is_complete = part.is_complete
    sum_.finish_reasons = part.finish_reasons
    if part.source == "estimate":
        sum_.source = "estimate"


def _may_go_on(context: RequestContext, offer: Offer) -> bool:
    """Return whether the offer can continue a text, and is free like the first one."""
    takes_up = offer.continues or context.call.kind == "completion"
    return takes_up and offer.price is None and context.offer is not None and context.offer.price is None


def _can_be_joined(call: Call) -> bool:
    request = call.request
    if call.kind not in GENERATES or not request.is_stream or call.features.keys() - HINTS:
        return False
    generation = call.generation
    if (generation.n or 1) > 1 or generation.alternatives >= 0:
        return False
    return isinstance(generation, ChatRequest) or _is_one_text(generation)


def _is_one_text(request: CompletionRequest) -> bool:
    return isinstance(request.prompt, str) and not request.echo
