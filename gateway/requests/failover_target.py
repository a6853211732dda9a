"""Finds the backend for the rest of a broken answer: the best allowed candidate, opened up to its first bytes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from msgspec import structs

from cluster.errors import GenerationError
from gateway.lanes.base import Answer, Call, Offer
from gateway.requests.attempt import begin
from gateway.requests.context import Trip
from gateway.requests.opener import enter_for
from gateway.requests.queue_slot import move_turn
from gateway.routing.decision import Decision
from gateway.services import Services
from runtime.errors import LaneFailed, ServiceError

log = structlog.get_logger(__name__)

_OK = 200
# A large model may read the prompt and all that was said for minutes; clients give up on less silence.
_SILENCE_S = 15.0


async def open_elsewhere(
    services: Services,
    trip: Trip,
    call: Call,
    decision: Decision,
    failed: set[str],
    may_go_on: Callable[[Offer], bool],
) -> Answer | None:
    """The first bytes of what `call` asks for, which is the rest; None when no backend can continue.

    Skips labels in `failed` and adds those of backends that cannot continue after all. Sets the trip's backend.
    """
    for candidate in decision.candidates:
        offer = candidate.offer
        if offer.label in failed or not may_go_on(offer):
            continue
        move_turn(services, trip, offer)
        try:
            answer = await _ask(services, trip, call, decision, offer)
        except (ServiceError, GenerationError) as error:
            log.warning("not continued", request_id=call.id, lane=offer.label, reason=str(error))
            services.metrics.continuations.labels(offer.lane, "failed").inc()
            failed.add(offer.label)
            continue
        # For the request log; the caller already has its headers.
        trip.decision = structs.replace(trip.decision, said=f"{trip.decision.reason}; continued on {offer.label}")
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
        note("still looking for who goes on")

    timer = loop.call_later(_SILENCE_S, say)
    try:
        yield
    finally:
        timer.cancel()


async def _ask(services: Services, trip: Trip, call: Call, decision: Decision, offer: Offer) -> Answer:
    """Raises LaneFailed also for an answer that is no stream: it cannot be a part of one."""
    await enter_for(services, trip, offer)
    dispatch = services.router.began(offer.label, decision, offer)
    answer = await begin(services, call, offer, dispatch)
    if not is_stream(answer):
        dispatch.left()
        await answer.body.close()
        raise LaneFailed(f"{offer.label} answers {answer.status} and does not go on")
    trip.offer, trip.dispatch = offer, dispatch
    return answer


def is_stream(answer: Answer) -> bool:
    """Whether it is an answer, and comes in events."""
    return answer.status == _OK and answer.content_type.startswith("text/event-stream")
