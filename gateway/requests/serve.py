"""One request from admission to settled ledger: enter, recall, choose, wait, open, send, settle."""

import structlog

from accounting.ledger.postings import Outcome
from cluster.errors import GenerationError
from gateway.billing.finished_request import Ending
from gateway.dialects.openai import TaskRequest
from gateway.errors import to_api_error
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Meter
from gateway.lanes.token_bounds import choices_of
from gateway.requests.attempt import note_error
from gateway.requests.client import Client
from gateway.requests.context import RequestContext
from gateway.requests.continuation import continues, send_on
from gateway.requests.deadline import in_time
from gateway.requests.delivery import AcknowledgedSink, heard
from gateway.requests.drain_after_disconnect import send_out
from gateway.requests.finished import observe_answer
from gateway.requests.incremental_hold import PaidUp, rolled
from gateway.requests.opener import open_first
from gateway.requests.queue_slot import take_at_once, take_turn
from gateway.requests.recall import recall
from gateway.requests.replica_failover import lasting, with_replicas
from gateway.requests.response_headers import headers_of
from gateway.requests.settlement import refusal, report, settle
from gateway.requests.truncation import cut_short
from gateway.services import Services
from runtime.errors import LaneFailed

log = structlog.get_logger(__name__)

# The tokens that limits reserve for an answer without a requested length.
_OUTPUT_TOKENS = 1024


async def serve(services: Services, caller: Caller, call: Call, client: Client) -> None:
    """Answer a call.

    Raises errors that gateway.errors maps to a status; later errors are the answer's last event.
    """
    context = RequestContext.begin(call, caller)
    try:
        answer = await _enter(services, context)
    except BaseException as error:
        if context.dispatch:
            context.dispatch.left()
        context.is_left = client.is_gone
        settle(services, context, Meter(), refusal(error))
        if context.lead:
            await context.lead.end(has_failed=isinstance(error, Exception))
        raise
    try:
        await _deliver(services, context, answer, client)
    finally:
        if context.lead:
            await context.lead.end()


async def _enter(services: Services, context: RequestContext) -> Answer:
    """Take a queue slot within all limits and open an answer, unless an answer exists already."""
    caller, call = context.caller, context.call
    services.admission.enter()
    context.has_place = True
    if caller.quotas:
        limits, model, tokens = services.limits, call.request.model, _tokens_max(call)
        context.ticket = limits.enter_at_once(caller, model, tokens) or await in_time(
            context, limits.enter(caller, model, tokens)
        )
    if services.answers.applies(call) and (found := await in_time(context, recall(services, context))):
        return found
    context.decision = decision = services.router.decide(caller, call)
    if decision.candidates and not take_at_once(services, context, decision.candidates[0].offer):
        await take_turn(services, context)
    context.decided_s = context.elapsed_s
    context.call = with_replicas(context)
    answer = rolled(services, context, lasting(services, context, call, await open_first(services, context)))
    if context.lead is None:
        return answer
    return context.lead.show(answer, is_paid=context.offer is not None and context.offer.price is not None)


async def _deliver(services: Services, context: RequestContext, answer: Answer, client: Client) -> None:
    """Send the answer, and settle the request in any case."""
    outcome: Outcome = "interrupted"
    problem = ""
    hearing = heard(client, context.call, context.offer, services.bookkeeper.recounter)
    client = hearing or client
    try:
        client.begin(answer.status, headers_of(context, answer), is_stream=context.call.request.is_stream)
        if continues(context.call):
            await send_on(services, context, answer, client)
        elif isinstance(hearing, AcknowledgedSink):
            await send_out(answer.body, hearing, choices_of(context.call.generation))
        else:
            await answer.body.send(client)
        if hearing:
            await hearing.arrive()
        outcome = "complete" if answer.status == 200 and answer.meter.is_complete else "failed"
        client.finish()
    except PaidUp as end:
        outcome, problem = await cut_short(services.bookkeeper.recounter, context, answer, client, end)
    except (LaneFailed, GenerationError) as error:
        # The status is already sent, so a stream ends with an error event and without [DONE].
        outcome, problem = "failed", str(error)
        log.warning("answer interrupted", request_id=context.call.id, reason=problem)
        note_error(services, context.offer, error)
        client.break_off(to_api_error(error))
    finally:
        try:
            await answer.body.close()
        finally:  # a slot that is not released would be lost permanently
            if hearing:
                others = context.lead.told() if context.lead else ()
                hearing.tell(answer.meter, context.call, is_whole=outcome == "complete", others=others)
            ending = Ending(answer.status, outcome, problem)
            report(context, answer.meter, ending)
            observe_answer(services.metrics, context, answer.meter)
            settle(services, context, answer.meter, ending)


def _tokens_max(call: Call) -> int:
    request = call.request
    limit = _OUTPUT_TOKENS if request.tokens_limit is None else request.tokens_limit
    had = request.millrace.had_tokens if request.millrace else 0
    return call.prompt_tokens + had + limit * (1 if isinstance(request, TaskRequest) else choices_of(request))
