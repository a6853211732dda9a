"""One request from admission to settled ledger: choose, open, relay, settle."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from accounting.postings import Outcome
from cluster.errors import GenerationError
from gateway.errors import (
    EXPECTED,
    FeatureUnsupported,
    GatewayError,
    LaneBrokeOff,
    LaneBusy,
    LaneFailed,
    ModelUnknown,
    Overloaded,
    PolicyForbids,
    to_api_error,
)
from gateway.identity.caller import Caller
from gateway.journey.trip import Ending, Trip
from gateway.lanes.base import Answer, Call, Meter, Offer, begun
from gateway.limits.admission import hold_nano, place_hold
from gateway.routing.decision import Candidate, Decision
from gateway.services import Services

log = structlog.get_logger(__name__)

# A request that nobody could begin to answer is offered to so many candidates at most.
ATTEMPTS_MAX = 3
_REASON_CHARS = 400


@dataclass(frozen=True, slots=True)
class Reply:
    """What the HTTP edge sends: the head is settled, the body is still to come."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: AsyncGenerator[bytes]


async def serve(services: Services, caller: Caller, call: Call) -> Reply:
    """Answer a call. Raises what gateway.errors turns into a status; later errors are the body's last event."""
    trip = Trip.begin(call, caller, services.router.decide(caller, call))
    services.admission.enter()
    try:
        answer, candidate = await _open_first(services, trip)
    except BaseException as error:
        services.admission.leave()
        services.bookkeeper.settle(trip, Meter(), _refusal(error))
        raise
    body = await begun(_deliver(services, trip, answer))
    return Reply(answer.status, _headers(trip, answer, candidate), body)


async def _open_first(services: Services, trip: Trip) -> tuple[Answer, Candidate]:
    """The best candidate that begins to answer; one that fails before its first byte is replaced by the next."""
    failure: LaneFailed | None = None
    for candidate in trip.decision.candidates[:ATTEMPTS_MAX]:
        if trip.hold and hold_nano(trip.call, candidate.offer) > trip.hold.amount_nano:
            continue  # what was put aside for a cheaper provider would not cover it
        trip.offer = candidate.offer
        try:
            return await _open(services, trip, candidate.offer), candidate
        except LaneFailed as error:
            failure = error
            log.warning("lane failed", request_id=trip.call.id, lane=candidate.offer.label, reason=str(error))
            services.metrics.lane_failures.labels(candidate.offer.lane).inc()
            if _may_cost_twice(candidate.offer, error):
                break
    raise failure or _why_nobody(trip.call, trip.decision)


def _may_cost_twice(offer: Offer, error: LaneFailed) -> bool:
    """Whether asking another candidate could have the same work paid for twice.

    On own machines (cluster, pool) work done in vain costs nobody money: the next candidate is always asked. A
    provider that was not reached, or that answered with an error, charges nothing; one that fell silent after
    it had the request may well charge for it.
    """
    return offer.price is not None and isinstance(error, LaneBrokeOff)


async def _open(services: Services, trip: Trip, offer: Offer) -> Answer:
    if trip.hold is None:
        trip.hold = await place_hold(services.books, trip.caller, trip.call, offer)
    services.health.began(offer.label)
    try:
        return await services.lanes[offer.lane].open(trip.call, offer)
    except BaseException as error:
        # A backend that is merely busy, or an error of the request's own, says nothing against the backend.
        if isinstance(error, LaneFailed) and not isinstance(error, LaneBusy):
            services.health.failed(offer.label)
        else:
            services.health.left(offer.label)
        raise


async def _deliver(services: Services, trip: Trip, answer: Answer) -> AsyncGenerator[bytes]:
    """The answer's bytes; settles when they end, however they end."""
    ending = Ending(answer.status, "interrupted")
    try:
        async with aclosing(answer.body) as body:
            yield b""
            async for chunk in body:
                if trip.first_byte_s is None:
                    trip.first_byte_s = trip.elapsed_s
                yield chunk
        outcome: Outcome = "complete" if answer.status == 200 and answer.meter.is_complete else "failed"
        ending = Ending(answer.status, outcome)
    except (LaneFailed, GenerationError) as error:
        # The status line is long gone: a stream ends with an error event and without [DONE].
        ending = Ending(answer.status, "failed", str(error))
        log.warning("answer broke off", request_id=trip.call.id, reason=str(error))
        yield to_api_error(error).event()
    finally:
        services.admission.leave()
        services.bookkeeper.observe(trip, answer.meter, ending)
        services.bookkeeper.settle(trip, answer.meter, ending)


def _refusal(error: BaseException) -> Ending:
    """How a request ended that got no answer; 499 is what others log for a caller who hung up."""
    if not isinstance(error, Exception):
        return Ending(499, "interrupted")
    status = to_api_error(error).status
    problem = str(error) if isinstance(error, EXPECTED) else type(error).__name__
    return Ending(status, "refused" if status < 500 else "failed", problem)


def _why_nobody(call: Call, decision: Decision) -> GatewayError:
    """The error that fits an empty ranking, in the words of the rejections."""
    model, rejections = call.request.model, decision.rejections
    if not rejections:
        message = f"The model '{model}' does not exist here. GET /v1/models lists what does."
        return ModelUnknown(message, param="model")
    for rejection in rejections:
        if rejection.rule:
            message = f"'{model}' cannot be served by a lane that this key may use: {decision.reason}."
            return PolicyForbids(message, param="model", code=f"policy_{rejection.rule.name}")
    asked = call.request.millrace.lane if call.request.millrace else None
    offers = [r.offer for r in rejections if asked in (None, r.offer.lane)]
    if offers and not any(call.kind in offer.kinds for offer in offers):
        message = f"'{model}' cannot do this here: {decision.reason}."
        return FeatureUnsupported(message, param="model")
    lacking = [call.features.keys() - offer.features for offer in offers]
    if lacking and all(lacking):
        message = f"'{model}' cannot do this here: {decision.reason}."
        return FeatureUnsupported(message, param=call.features[min(lacking[0])])
    return Overloaded(f"'{model}' cannot be served just now: {decision.reason}.")


def _headers(trip: Trip, answer: Answer, candidate: Candidate) -> list[tuple[bytes, bytes]]:
    reason = trip.decision.reason
    if candidate is not trip.decision.candidates[0]:
        reason = f"{candidate.offer.label} took over from {trip.decision.candidates[0].offer.label}; {reason}"
    return [
        (b"content-type", answer.content_type.encode("latin-1", "replace")),
        (b"x-request-id", trip.call.id.encode()),
        (b"x-millrace-lane", candidate.offer.lane.encode()),
        (b"x-millrace-reason", reason[:_REASON_CHARS].encode("ascii", "replace")),
        *answer.headers,
    ]
