"""Opens an answer at the best candidate, or at the one that replaces it before the first byte."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from accounting.errors import InsufficientCredit, LedgerUnavailable
from accounting.payments.errors import PayerFrozen
from gateway.errors import BudgetUnavailable, LaneBusy, LaneUnreachable, TooManyHangUps
from gateway.lanes.base import Answer, Call, Offer
from gateway.limits.limits import Limits
from gateway.limits.ticket import Ticket
from gateway.metrics.metrics import Metrics
from gateway.requests.attempt import Attempts, is_stream
from gateway.requests.context import Asked, DecidedCall, RequestContext
from gateway.requests.hedging import Hedges
from gateway.requests.holds import RequestFunds
from gateway.requests.no_backend import no_backend_error
from gateway.requests.outage import Failure, Outages
from gateway.requests.queue_slot import QueueSlots
from gateway.routing.decision import Candidate, Decision
from gateway.routing.router import Router
from runtime.errors import BudgetExceeded, LaneBrokeOff, LaneFailed, QueueFull, RateLimited

log = structlog.get_logger(__name__)

# The maximum number of candidates tried before the first byte. A candidate that only asks for a pause does not
# count, and neither does a gateway that restarts: the request waits for these.
ATTEMPTS_MAX = 3

# The caller's funds do not cover the candidate; free candidates are not affected.
_NO_MONEY = (BudgetExceeded, BudgetUnavailable, InsufficientCredit, LedgerUnavailable, PayerFrozen, TooManyHangUps)
# Such a refusal, or no room within the limits of a model that would have answered in another's place.
_REFUSED = (RateLimited, *_NO_MONEY)


@dataclass(frozen=True, slots=True)
class AnswerOpener:
    """Opens answers: asks one candidate after the other until one begins. One event loop owns it."""

    attempts: Attempts
    hedges: Hedges
    funds: RequestFunds
    slots: QueueSlots
    outages: Outages
    limits: Limits
    router: Router
    metrics: Metrics

    async def open_first(self, context: RequestContext, decided: DecidedCall) -> Answer:
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
                if refusal or not await self.slots.wait_for_candidate(context, failed):
                    break
                rest = deque(context.decision.candidates)
                continue
            offer = rest.popleft().offer
            if failure and context.slot != offer.label:
                self.slots.move(context, offer)
            context.asked = Asked(offer)
            try:
                return await context.in_time(self._open(context, decided.call, offer, rest))
            except _REFUSED as error:
                if context.hold and isinstance(error, _NO_MONEY):
                    continue  # the hold for a cheaper provider does not cover this candidate
                refusal = refusal or error
                rest = await self._others(context, offer, rest, error)
            except LaneFailed as error:
                failure = error
                if not (isinstance(error, LaneBusy) and error.asks_for_pause):
                    failed[offer.label, offer.model] = self.outages.failure(offer, error)
                    attempts += not (offer.is_gateway and isinstance(error, LaneUnreachable))
                log.warning("lane failed", request_id=context.call.id, lane=offer.label, reason=str(error))
                self.metrics.lane_failures.labels(offer.lane).inc()
                if _may_cost_twice(offer, error):
                    break
        pause = self.slots.first_pause(context.decision)
        raise refusal or failure or no_backend_error(context.call, context.decision, pause)

    async def open_rest(self, context: RequestContext, call: Call, decision: Decision, offer: Offer) -> Answer:
        """Open the rest of a broken answer, which `call` requests. Also raises LaneFailed if it is not a stream."""
        if ticket := _ticket_beside(context, offer):
            await self.limits.enter_beside(ticket, context.caller, (offer.model, *offer.stands_for))
        dispatch = self.router.began(offer.label, decision, offer)
        answer = await self.attempts.begin(call, offer, dispatch)
        if not is_stream(answer):
            dispatch.left()
            await answer.body.close()
            raise LaneFailed(f"{offer.label} answers {answer.status} and does not continue")
        context.asked = Asked(offer, dispatch)
        return answer

    async def open_preemptible(self, context: RequestContext, offer: Offer) -> Answer:
        """Open the answer to a preemptible request. Routing learns nothing from it. Raises what `Lane.open` raises."""
        context.asked = Asked(offer)
        answer = await self.attempts.lanes[offer.lane].open(context.call, offer)
        context.opened_s = context.elapsed_s
        return answer

    async def _others(
        self, context: RequestContext, offer: Offer, rest: deque[Candidate], refusal: Exception
    ) -> deque[Candidate]:
        """The remaining candidates that the refusal does not affect, with a turn at the first; else none."""
        log.info(
            "credits or limits do not cover the request",
            request_id=context.call.id,
            lane=context.lane,
            reason=str(refusal),
        )
        if not isinstance(refusal, _NO_MONEY):
            # Another backend may have another model behind the same alias.
            context.refused_models |= frozenset(offer.stands_for or (offer.model,))
        elif offer.lane == "market":
            # Promotional credits, which the market does not accept, may pay a provider.
            rest = deque(candidate for candidate in rest if candidate.offer.lane != "market")
        else:
            context.may_pay = False
        try:
            await self.slots.take_other_turn(context, rest)
        except QueueFull:
            return deque()
        return deque(context.decision.candidates)

    async def _open(
        self, context: RequestContext, call: Call, offer: Offer, others: Sequence[Candidate]
    ) -> Answer:
        """Open the answer at this candidate; `others` may be asked in its place."""
        if ticket := _ticket_beside(context, offer):
            await self.limits.enter_beside(ticket, context.caller, (offer.model, *offer.stands_for))
        is_paid = offer.price is not None
        if is_paid:
            if wait_s := self.limits.hang_ups.wait_s(context.caller.user_id):
                raise TooManyHangUps(wait_s)
            await self.funds.reserve(context, offer)
        dispatch = self.router.began(offer.label, context.decision, offer)
        context.asked = Asked(offer, dispatch, is_paid)
        if others and not is_paid:
            begun = await self.hedges.open(context, call, offer, dispatch, others)
            answer = begun.answer
            if begun.offer is not offer:
                context.asked = Asked(begun.offer, begun.dispatch)
        else:
            try:
                answer = await self.attempts.begin(call, offer, dispatch)
            except Exception:  # it has failed or refused, so it is paid nothing
                context.asked = Asked(offer, dispatch)
                raise
        context.opened_s = context.elapsed_s
        return answer


def _ticket_beside(context: RequestContext, offer: Offer) -> Ticket | None:
    """Return the request's ticket if limits on the answering model also apply: it was requested by another name."""
    ticket = context.admitted.ticket
    if ticket and (offer.model != ticket.model or offer.stands_for or ticket.further):
        return ticket
    return None


def _may_cost_twice(offer: Offer, error: LaneFailed) -> bool:
    """Return whether asking another candidate could pay for the same work twice.

    On own machines (cluster, pool) wasted work costs no money: the next candidate is always asked. A
    provider that was not reached, or that answered with an error, charges nothing; one that fell silent after
    it had the request may well charge for it.
    """
    return offer.price is not None and isinstance(error, LaneBrokeOff)
