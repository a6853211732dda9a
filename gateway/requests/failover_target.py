"""Finds the backend for the rest of a broken answer: the best allowed candidate, opened up to its first bytes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from msgspec import structs

from cluster.errors import GenerationError
from gateway.lanes.base import Answer, Call, Offer
from gateway.requests.attempt import begin
from gateway.requests.context import RequestContext
from gateway.requests.opener import enter_for
from gateway.requests.queue_slot import move_turn
from gateway.routing.decision import Decision
from gateway.services import Services
from runtime.errors import LaneFailed, ServiceError

log = structlog.get_logger(__name__)

_OK = 200
# A large model may process the prompt and the text so far for minutes; clients tolerate less silence.
_SILENCE_S = 15.0


async def open_elsewhere(
    services: Services,
    context: RequestContext,
    call: Call,
    decision: Decision,
    failed: set[str],
    may_go_on: Callable[[Offer], bool],
) -> Answer | None:
    """Return the first bytes of the rest, which `call` requests; None if no backend can continue.

    Skips labels in `failed` and adds those of backends that cannot continue. Sets the context's backend.
    """
    for candidate in decision.candidates:
        offer = candidate.offer
        if offer.label in failed or not may_go_on(offer):
            continue
        move_turn(services, context, offer)
        try:
            answer = await _ask(services, context, call, decision, offer)
        except (ServiceError, GenerationError) as error:
            log.warning("answer not continued", request_id=call.id, lane=offer.label, reason=str(error))
            services.metrics.continuations.labels(offer.lane, "failed").inc()
            failed.add(offer.label)
            continue
        # For the request log; the caller already has the headers.
        context.decision = structs.replace(
            context.decision, said=f"{context.decision.reason}; continued on {offer.label}"
        )
        services.metrics.continuations.labels(offer.lane, "begun").inc()
        return answer
    return None


@contextmanager
def keeping_awake(note: Callable[[str], None]) -> Iterator[None]:
    """Send the caller a comment at intervals, through `note`, while another backend is being found."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def say() -> None:
        nonlocal timer
        timer = loop.call_later(_SILENCE_S, say)
        note("still looking for a backend that continues")

    timer = loop.call_later(_SILENCE_S, say)
    try:
        yield
    finally:
        timer.cancel()


async def _ask(
    services: Services, context: RequestContext, call: Call, decision: Decision, offer: Offer
) -> Answer:
    """Open the continuation. Also raises LaneFailed if the answer is not a stream."""
    await enter_for(services, context, offer)
    dispatch = services.router.began(offer.label, decision, offer)
    answer = await begin(services, call, offer, dispatch)
    if not is_stream(answer):
        dispatch.left()
        await answer.body.close()
        raise LaneFailed(f"{offer.label} answers {answer.status} and does not continue")
    context.offer, context.dispatch = offer, dispatch
    return answer


def is_stream(answer: Answer) -> bool:
    """Return whether it is an answer in events."""
    return answer.status == _OK and answer.content_type.startswith("text/event-stream")
