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
from gateway.requests.context import Trip
from gateway.requests.continuation import continues, send_on
from gateway.requests.deadline import in_time
from gateway.requests.delivery import Followed, heard
from gateway.requests.drain_after_disconnect import send_out
from gateway.requests.finished import observe_answer
from gateway.requests.incremental_hold import PaidUp, rolled
from gateway.requests.opener import open_first
from gateway.requests.queue_slot import take_at_once, take_turn
from gateway.requests.recall import recall
from gateway.requests.replica_failover import lasting, with_twins
from gateway.requests.response_headers import headers_of
from gateway.requests.settlement import refusal, report, settle
from gateway.requests.truncation import cut_short
from gateway.services import Services
from runtime.errors import LaneFailed

log = structlog.get_logger(__name__)

# Tokens that limits reserve for an answer whose length the request leaves open.
_OUTPUT_TOKENS = 1024


async def serve(services: Services, caller: Caller, call: Call, client: Client) -> None:
    """Answer a call. Raises what gateway.errors turns into a status; later errors are the answer's last event."""
    trip = Trip.begin(call, caller)
    try:
        answer = await _enter(services, trip)
    except BaseException as error:
        if trip.dispatch:
            trip.dispatch.left()
        trip.is_left = client.is_gone
        settle(services, trip, Meter(), refusal(error))
        if trip.lead:
            await trip.lead.end(has_failed=isinstance(error, Exception))
        raise
    try:
        await _deliver(services, trip, answer, client)
    finally:
        if trip.lead:
            await trip.lead.end()


async def _enter(services: Services, trip: Trip) -> Answer:
    """Take a queue slot within all limits and open an answer, unless an answer exists already."""
    caller, call = trip.caller, trip.call
    services.admission.enter()
    trip.has_place = True
    if caller.quotas:
        limits, model, tokens = services.limits, call.request.model, _tokens_max(call)
        trip.ticket = limits.enter_at_once(caller, model, tokens) or await in_time(
            trip, limits.enter(caller, model, tokens)
        )
    if services.answers.applies(call) and (found := await in_time(trip, recall(services, trip))):
        return found
    trip.decision = decision = services.router.decide(caller, call)
    if decision.candidates and not take_at_once(services, trip, decision.candidates[0].offer):
        await take_turn(services, trip)
    trip.decided_s = trip.elapsed_s
    trip.call = with_twins(trip)
    answer = rolled(services, trip, lasting(services, trip, call, await open_first(services, trip)))
    if trip.lead is None:
        return answer
    return trip.lead.show(answer, is_paid=trip.offer is not None and trip.offer.price is not None)


async def _deliver(services: Services, trip: Trip, answer: Answer, client: Client) -> None:
    """Send the answer; settles when it ends, however it ends."""
    outcome: Outcome = "interrupted"
    problem = ""
    hearing = heard(client, trip.call, trip.offer, services.bookkeeper.recounter)
    client = hearing or client
    try:
        client.begin(answer.status, headers_of(trip, answer), is_stream=trip.call.request.is_stream)
        if continues(trip.call):
            await send_on(services, trip, answer, client)
        elif isinstance(hearing, Followed):
            await send_out(answer.body, hearing, choices_of(trip.call.generation))
        else:
            await answer.body.send(client)
        if hearing:
            await hearing.arrive()
        outcome = "complete" if answer.status == 200 and answer.meter.is_complete else "failed"
        client.finish()
    except PaidUp as end:
        outcome, problem = await cut_short(services.bookkeeper.recounter, trip, answer, client, end)
    except (LaneFailed, GenerationError) as error:
        # The status line is long gone: a stream ends with an error event and without [DONE].
        outcome, problem = "failed", str(error)
        log.warning("answer broke off", request_id=trip.call.id, reason=problem)
        note_error(services, trip.offer, error)
        client.break_off(to_api_error(error))
    finally:
        try:
            await answer.body.close()
        finally:  # a place that is not given back would be missing for good
            if hearing:
                others = trip.lead.told() if trip.lead else ()
                hearing.tell(answer.meter, trip.call, is_whole=outcome == "complete", others=others)
            ending = Ending(answer.status, outcome, problem)
            report(trip, answer.meter, ending)
            observe_answer(services.metrics, trip, answer.meter)
            settle(services, trip, answer.meter, ending)


def _tokens_max(call: Call) -> int:
    request = call.request
    limit = _OUTPUT_TOKENS if request.tokens_limit is None else request.tokens_limit
    had = request.millrace.had_tokens if request.millrace else 0
    return call.prompt_tokens + had + limit * (1 if isinstance(request, TaskRequest) else choices_of(request))
