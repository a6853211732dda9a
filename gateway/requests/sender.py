"""Sends an answer to its client, and settles the request in any case."""

import asyncio
from dataclasses import dataclass

import structlog

from accounting.ledger.postings import Outcome
from cluster.errors import GenerationError
from gateway.billing.finished_request import Ending
from gateway.billing.recount import Recounter
from gateway.errors import FeatureUnsupported, LaneBusy, to_api_error
from gateway.lanes.base import Answer
from gateway.lanes.body import Body
from gateway.lanes.token_bounds import choices_of
from gateway.requests.client import Client
from gateway.requests.context import RequestContext
from gateway.requests.continuation import continues, send_on
from gateway.requests.delivery import AcknowledgedSink, heard
from gateway.requests.failover_target import FailoverTargets
from gateway.requests.incremental_hold import PaidUp
from gateway.requests.response_headers import headers_of
from gateway.requests.settlement import RequestSettler
from gateway.requests.truncation import cut_short
from runtime.errors import LaneFailed

log = structlog.get_logger(__name__)

# Providers count hidden tokens, such as reasoning, and report the count after the end of every choice. If the caller
# disconnects in between, the paid answer continues without its caller for at most this time.
LINGER_S = 2.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends answers. One event loop owns it."""

    recounter: Recounter
    targets: FailoverTargets
    settler: RequestSettler

    async def send(self, context: RequestContext, answer: Answer, client: Client) -> None:
        """Send the answer. If an error occurs after the answer has begun, its last event reports the error."""
        outcome: Outcome = "interrupted"
        problem, call = "", context.call
        hearing = heard(client, call, context.offer, self.recounter)
        client = hearing or client
        try:
            client.begin(answer.status, headers_of(context, answer), is_stream=call.request.is_stream)
            if continues(call):
                await send_on(self.targets, context, answer, client)
            elif isinstance(hearing, AcknowledgedSink):
                await _send_paid(answer.body, hearing, choices_of(call.generation))
            else:
                await answer.body.send(client)
            if hearing:
                await hearing.arrive()
            outcome = "complete" if answer.status == 200 and answer.meter.is_complete else "failed"
            client.finish()
        except PaidUp as end:
            outcome, problem = await cut_short(self.recounter, context, answer, client, end)
        except (LaneFailed, GenerationError, FeatureUnsupported) as error:
            # The status is already sent, so a stream ends with an error event and without [DONE].
            outcome, problem = "failed", str(error)
            log.warning("answer interrupted", request_id=call.id, reason=problem)
            if not isinstance(error, FeatureUnsupported):
                self.targets.attempts.note_error(context.offer, error)
            if isinstance(error, LaneBusy | FeatureUnsupported) and context.dispatch:
                # The model was still being loaded, and nothing of the answer was sent: the backend is healthy.
                context.dispatch.left()
            client.break_off(to_api_error(error))
        finally:
            try:
                await answer.body.close()
            finally:  # a slot that is not released would be lost permanently
                if hearing:
                    lead = context.admitted.lead
                    others = lead.told() if lead else ()
                    hearing.tell(answer.meter, call, is_whole=outcome == "complete", others=others)
                self.settler.end(context, answer.meter, Ending(answer.status, outcome, problem))


async def _send_paid(body: Body, hearing: AcknowledgedSink, choices: int) -> None:
    """Send the body. Also returns normally if the caller disconnected and the body reached its end."""
    sending = asyncio.create_task(body.send(hearing), name="paid answer")
    try:
        await asyncio.wait((sending,))
    except asyncio.CancelledError:
        if hearing.has_all(choices):
            await asyncio.wait((sending,), timeout=LINGER_S)
        sending.cancel()
        await asyncio.wait((sending,))
        if sending.cancelled():
            raise
        if task := asyncio.current_task():
            task.uncancel()
    finally:
        if not sending.done():
            sending.cancel()
            await asyncio.wait((sending,), timeout=_STOP_S)
    sending.result()
