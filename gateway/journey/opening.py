"""Having somebody begin to answer: the best candidate, or whoever takes over from it before the first byte."""

import math

import structlog

from gateway.errors import LaneBrokeOff, LaneFailed
from gateway.journey.attempt import begin
from gateway.journey.hedging import open_hedged
from gateway.journey.nobody import why_nobody
from gateway.journey.trip import Trip
from gateway.journey.turn import move_turn
from gateway.lanes.base import Answer, Offer
from gateway.limits.admission import hold_nano, place_hold
from gateway.routing.decision import Decision
from gateway.services import Services

log = structlog.get_logger(__name__)

# A request that nobody could begin to answer is offered to so many candidates at most.
ATTEMPTS_MAX = 3


async def open_first(services: Services, trip: Trip) -> Answer:
    """The best candidate that begins to answer; one that fails before its first byte is replaced by the next."""
    failure: LaneFailed | None = None
    for candidate in trip.decision.candidates[:ATTEMPTS_MAX]:
        offer = candidate.offer
        if trip.hold and hold_nano(trip.call, offer) > trip.hold.amount_nano:
            continue  # what was put aside for a cheaper provider would not cover it
        if failure:
            move_turn(services, trip, offer)
        trip.offer = offer
        try:
            return await _open(services, trip, offer)
        except LaneFailed as error:
            failure = error
            log.warning("lane failed", request_id=trip.call.id, lane=offer.label, reason=str(error))
            services.metrics.lane_failures.labels(offer.lane).inc()
            if _may_cost_twice(offer, error):
                break
    raise failure or why_nobody(trip.call, trip.decision, _wait_s(services, trip.decision))


async def _open(services: Services, trip: Trip, offer: Offer) -> Answer:
    if offer.price is not None and trip.hold is None:
        await _put_aside(services, trip, offer)
    dispatch = trip.dispatch = services.router.began(offer.label, trip.decision, offer)
    if len(trip.decision.candidates) > 1 and offer.price is None and services.settings.routing.hedging:
        answer = await open_hedged(services, trip, offer, dispatch)
    else:
        answer = await begin(services, trip.call, offer, dispatch)
    trip.first_byte_s = trip.elapsed_s
    return answer


async def _put_aside(services: Services, trip: Trip, offer: Offer) -> None:
    """The most that the call may cost there: within its caller's budgets, then out of the account that pays."""
    if trip.ticket:
        await trip.ticket.reserve_spend(hold_nano(trip.call, offer))
    trip.hold = await place_hold(services.books, trip.caller, trip.call, offer)


def _wait_s(services: Services, decision: Decision) -> int:
    """How long the first of those who asked to be left alone, if any did, wants that still."""
    now_s = services.health.now_s()
    waits_s = [services.health.of(r.offer.label).breaker.asked_until_s - now_s for r in decision.rejections]
    return math.ceil(min((wait_s for wait_s in waits_s if wait_s > 0), default=0))


def _may_cost_twice(offer: Offer, error: LaneFailed) -> bool:
    """Whether asking another candidate could have the same work paid for twice.

    On own machines (cluster, pool) work done in vain costs nobody money: the next candidate is always asked. A
    provider that was not reached, or that answered with an error, charges nothing; one that fell silent after
    it had the request may well charge for it.
    """
    return offer.price is not None and isinstance(error, LaneBrokeOff)
