"""Admits a request: a place in the gateway, its reservations in limits, and perhaps an answer that exists already."""

from dataclasses import dataclass

from gateway.cache.answers import AnswerCache, Found
from gateway.dialects.openai import TaskRequest
from gateway.lanes.base import Answer, Call
from gateway.lanes.token_bounds import choices_of
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.metrics.metrics import Metrics
from gateway.requests.context import OUTSIDE, Admitted, RequestContext
from gateway.routing.need import privacy_of

# The tokens that limits reserve for an answer without a requested length.
_OUTPUT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Admittance:
    """The step before routing. One event loop owns it."""

    admission: Admission
    limits: Limits
    answers: AnswerCache
    metrics: Metrics

    async def admit(self, context: RequestContext) -> Answer | None:
        """Take a place and reserve tokens; return an answer that needs no backend.

        Without one, the request may become the leader for identical requests. Raises Overloaded, RateLimited,
        BudgetExceeded, BudgetUnavailable, DeadlinePassed.
        """
        caller, call = context.caller, context.call
        self.admission.enter()
        ticket = None
        if caller.quotas:
            try:
                limits, model, tokens = self.limits, call.request.model, tokens_max(call)
                ticket = limits.enter_at_once(caller, model, tokens) or await context.in_time(
                    limits.enter(caller, model, tokens)
                )
            except BaseException:
                self.admission.leave()
                raise
        context.admitted = Admitted(ticket)
        if not self.answers.applies(call):
            return None
        found = await context.in_time(self.answers.find(call, caller, privacy_of(call, caller)))
        if not isinstance(found, Found):
            context.admitted = Admitted(ticket, found)
            return None
        context.admitted = Admitted(ticket, None, found.source, context.elapsed_s)
        self.metrics.cache_hits.labels(found.source).inc()
        return found.answer

    def leave(self, context: RequestContext) -> None:
        """Give the place back, if the request has one."""
        if context.admitted is not OUTSIDE:
            self.admission.leave()


def tokens_max(call: Call) -> int:
    """Return the most tokens that a call may use, as its limits reserve them. Pure."""
    request = call.request
    limit = _OUTPUT_TOKENS if request.tokens_limit is None else request.tokens_limit
    had = request.millrace.had_tokens if request.millrace else 0
    return call.prompt_tokens + had + limit * (1 if isinstance(request, TaskRequest) else choices_of(request))
