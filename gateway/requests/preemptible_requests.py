"""Serve one preemptible request from admission to settled usage: without queue, quotas, cache or other lanes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from accounting.ledger.postings import Outcome
from cluster.errors import GenerationError
from gateway.billing.finished_request import Ending
from gateway.dialects.openai import GENERATES
from gateway.errors import Preempted, to_api_error
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Meter, Offer
from gateway.lanes.preemptible.jobs import PreemptibleJobs, RunningJob
from gateway.lanes.token_bounds import choices_of
from gateway.metrics.metrics import Metrics
from gateway.requests.client import Client
from gateway.requests.context import RequestContext
from gateway.requests.no_backend import no_backend_error
from gateway.requests.opener import AnswerOpener
from gateway.requests.response_headers import headers_of
from gateway.requests.settlement import RequestSettler, refusal
from gateway.routing.router import Router
from runtime.errors import LaneFailed, LaneTimeout, RequestInvalid, ServiceError

log = structlog.get_logger(__name__)

# Bounds how long a preemptible request keeps a slot, however slowly the answer is read.
STAY_S = 1800.0


@dataclass(frozen=True, slots=True)
class PreemptibleRequests:
    """Serves preemptible requests. One event loop owns it."""

    jobs: PreemptibleJobs
    router: Router
    opener: AnswerOpener
    settler: RequestSettler
    metrics: Metrics

    async def serve(self, caller: Caller, call: Call, client: Client) -> None:
        """Serve a preemptible request.

        Raises what gateway.errors maps to a status; later errors are the answer's last event.
        """
        self.jobs.check_key(caller)
        offers, context = self._offers(caller, call)
        places = choices_of(call.generation)
        try:
            offer = self.jobs.place_for(offers, places)
        except ServiceError:
            self.metrics.preemptible_jobs.labels("refused").inc()
            raise
        with self.jobs.staying(offer, places) as stay:
            await _Hosted(self, context, client, stay).run(offer)

    def _offers(self, caller: Caller, call: Call) -> tuple[Sequence[Offer], RequestContext]:
        """Return the offers that may and can serve it, best first; only of the requested model."""
        if call.kind not in GENERATES:
            raise RequestInvalid("Preemptible requests may only be chat completions and completions.")
        decision = self.router.explain(caller, call)
        model = call.request.model
        offers = [candidate.offer for candidate in decision.candidates if candidate.offer.model == model]
        if not offers:
            raise no_backend_error(call, decision)
        return offers, RequestContext.begin(call, caller, decision)


class _Hosted:
    """A preemptible request with a slot, until its answer ends, its backend fails or the owner's work arrives."""

    def __init__(
        self, requests: PreemptibleRequests, context: RequestContext, client: Client, stay: RunningJob
    ) -> None:
        self._requests = requests
        self._context = context
        self._client = client
        self._stay = stay
        self._has_begun = False

    async def run(self, offer: Offer) -> None:
        ending, meter = Ending(499, "interrupted"), Meter()
        try:
            async with asyncio.timeout(STAY_S):
                answer = await self._requests.opener.open_preemptible(self._context, offer)
                meter = answer.meter
                ending = await self._send(answer)
        except asyncio.CancelledError:
            # The caller may have disconnected, at the same moment or before.
            if not self._stay.is_over or self._stay.task.uncancel() > 0:
                raise
            await asyncio.sleep(0)  # the owner's request goes first
            ending = self._give_up(Preempted("The owner needs this machine. Try another seller."))
        except TimeoutError:
            ending = self._give_up(
                LaneTimeout(f"The answer took longer than {STAY_S:.0f} s, the limit for preemptible requests.")
            )
        except (LaneFailed, GenerationError) as error:
            ending = self._give_up(error)
        except Exception as error:
            ending = refusal(error)
            raise
        finally:
            self._note(meter, ending)

    async def _send(self, answer: Answer) -> Ending:
        is_stream = self._context.call.request.is_stream
        try:
            self._client.begin(answer.status, headers_of(self._context, answer), is_stream=is_stream)
            self._has_begun = True
            await answer.body.send(self._client)
        finally:
            await answer.body.close()
        outcome: Outcome = "complete" if answer.status == 200 and answer.meter.is_complete else "failed"
        self._client.finish()
        return Ending(answer.status, outcome)

    def _give_up(self, error: Exception) -> Ending:
        """Send the reason after the last complete event, or as the answer if none has begun."""
        api_error = to_api_error(error)
        log.info("preemptible request ends", request_id=self._context.call.id, reason=api_error.code)
        self._client.break_off(api_error)
        status = 200 if self._has_begun else api_error.status
        if isinstance(error, Preempted):
            return Ending(status, "interrupted", "preempted")
        return Ending(status, "failed", str(error)) if self._has_begun else refusal(error)

    def _note(self, meter: Meter, ending: Ending) -> None:
        """Write a usage row and a log line as for any request, but nothing that own requests are judged by."""
        outcome = "preempted" if self._stay.is_over else ending.outcome
        self._requests.metrics.preemptible_jobs.labels(outcome).inc()
        self._requests.settler.book(self._context, meter, ending)
