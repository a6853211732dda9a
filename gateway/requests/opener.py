"""Opens an answer at the best candidate, or at the one that replaces it before the first byte."""

from collections import deque
from collections.abc import Sequence

import structlog
from msgspec import structs

from accounting.errors import InsufficientCredit, LedgerUnavailable
from accounting.payments.errors import PayerFrozen
from gateway.errors import BudgetUnavailable, LaneBusy, LaneUnreachable, TooManyHangUps
from gateway.lanes.base import Answer, Offer
from gateway.requests.attempt import begin
from gateway.requests.context import RequestContext
from gateway.requests.deadline import in_time
from gateway.requests.hedging import open_hedged
from gateway.requests.holds import reserve_funds
from gateway.requests.no_backend import no_backend_error
from gateway.requests.outage import Failure
from gateway.requests.queue_slot import first_pause, move_turn, take_other_turn, wait_for_candidate
from gateway.routing.decision import Candidate
from gateway.services import Services
from runtime.errors import BudgetExceeded, LaneBrokeOff, LaneFailed, QueueFull, RateLimited

log = structlog.get_logger(__name__)

# The maximum number of candidates tried before the first byte. A candidate that only asks for a pause does not
# count, and neither does a gateway that restarts: the request waits for these.
ATTEMPTS_MAX = 3

# The caller's funds do not cover the candidate; free candidates are not affected.
_NO_MONEY = (BudgetExceeded, BudgetUnavailable, InsufficientCredit, LedgerUnavailable, PayerFrozen, TooManyHangUps)
# Such a refusal, or no room within the limits of a model that would have answered in another's place.
_REFUSED = (RateLimited, *_NO_MONEY)


async def open_first(services: Services, context: RequestContext) -> Answer:
    """Return the answer of the best candidate that begins to answer.

    One that fails before its first byte is replaced by the next. A candidate that the caller's money or limits do
    not cover is also replaced, by those that they cover. If none of these answers, the caller gets that refusal.
    The only ones left may have asked for a pause, or be a gateway that restarts. Then the request waits for the
    end of the first of these, within its timeout.

    Raises the first refusal by limits or money, otherwise the last LaneFailed, otherwise the reason for having no
    candidate.
    """
    failure: LaneFailed | None = None
    refusal: Exception | None = None
    rest, failed = deque(context.decision.candidates), dict[tuple[str, str], Failure]()
    attempts = 0
    while attempts < ATTEMPTS_MAX:
        if not rest:
            if refusal or not await wait_for_candidate(services, context, failed):
                break
            rest = deque(context.decision.candidates)
            continue
        offer = rest.popleft().offer
        if failure and context.turn != offer.label:
            move_turn(services, context, offer)
        context.offer = offer
        try:
            return await in_time(context, _open(services, context, offer, rest))
        except _REFUSED as error:
            if context.hold and isinstance(error, _NO_MONEY):
                continue  # the hold for a cheaper provider does not cover this candidate
            refusal = refusal or error
            rest = await _others(services, context, rest, error)
        except LaneFailed as error:
            failure = error
            if not (isinstance(error, LaneBusy) and error.asks_for_pause):
                failed[offer.label, offer.model] = Failure.of(services, offer, error)
                attempts += not (offer.is_gateway and isinstance(error, LaneUnreachable))
            log.warning("lane failed", request_id=context.call.id, lane=offer.label, reason=str(error))
            services.metrics.lane_failures.labels(offer.lane).inc()
            if _may_cost_twice(offer, error):
                break
    pause = first_pause(services, context.decision)
    raise refusal or failure or no_backend_error(context.call, context.decision, pause)


async def _others(
    services: Services, context: RequestContext, rest: deque[Candidate], refusal: Exception
) -> deque[Candidate]:
    """The remaining candidates that the refusal does not affect, with a turn at the first; else none."""
    log.info(
        "credits or limits do not cover the request",
        request_id=context.call.id,
        lane=context.lane,
        reason=str(refusal),
    )
    if isinstance(refusal, _NO_MONEY) and context.offer and context.offer.lane == "market":
        # Promotional credits, which the market does not accept, may pay a provider.
        rest = deque(candidate for candidate in rest if candidate.offer.lane != "market")
    elif isinstance(refusal, _NO_MONEY):
        context.may_pay = False
    elif context.offer:
        # Another backend may have another model behind the same alias.
        context.refused_models |= frozenset(context.offer.stands_for or (context.offer.model,))
    context.decision = structs.replace(context.decision, candidates=tuple(rest))
    try:
        await take_other_turn(services, context)
    except QueueFull:
        return deque()
    return deque(context.decision.candidates)


async def enter_for(services: Services, context: RequestContext, offer: Offer) -> None:
    """Apply the limits of the answering model also if it was requested by another name. Raises RateLimited."""
    ticket = context.ticket
    if ticket and (offer.model != ticket.model or offer.stands_for or ticket.further):
        await services.limits.enter_beside(ticket, context.caller, (offer.model, *offer.stands_for))


async def _open(services: Services, context: RequestContext, offer: Offer, others: Sequence[Candidate]) -> Answer:
    """Open the answer at this candidate; `others` may be asked in its place."""
    await enter_for(services, context, offer)
    if offer.price is not None:
        if wait_s := services.limits.hang_ups.wait_s(context.caller.user_id):
            raise TooManyHangUps(wait_s)
        await reserve_funds(services, context, offer)
    dispatch = context.dispatch = services.router.began(offer.label, context.decision, offer)
    if others and offer.price is None:
        answer = await open_hedged(services, context, offer, dispatch, others)
    else:
        context.has_asked = offer.price is not None
        try:
            answer = await begin(services, context.call, offer, dispatch)
        except Exception:  # it has failed or refused, so it is paid nothing
            context.has_asked = False
            raise
    context.first_byte_s = context.elapsed_s
    return answer


def _may_cost_twice(offer: Offer, error: LaneFailed) -> bool:
    """Return whether asking another candidate could pay for the same work twice.

    On own machines (cluster, pool) wasted work costs no money: the next candidate is always asked. A
    provider that was not reached, or that answered with an error, charges nothing; one that fell silent after
    it had the request may well charge for it.
    """
    return offer.price is not None and isinstance(error, LaneBrokeOff)
