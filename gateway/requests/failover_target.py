"""Finds the backend for the rest of a broken answer: the best allowed candidate, opened up to its first bytes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from cluster.errors import GenerationError
from gateway.lanes.base import Answer, Call, Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.attempt import Attempts
from gateway.requests.context import RequestContext
from gateway.requests.opener import AnswerOpener
from gateway.requests.queue_slot import QueueSlots
from gateway.routing.decision import Decision
from gateway.routing.router import Router
from runtime.errors import ServiceError

log = structlog.get_logger(__name__)

# A large model may process the prompt and the text so far for minutes; clients tolerate less silence.
_SILENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class FailoverTargets:
    """Opens the rest of broken answers. One event loop owns it."""

    attempts: Attempts
    opener: AnswerOpener
    slots: QueueSlots
    router: Router
    metrics: Metrics

    async def open(
        self,
        context: RequestContext,
        call: Call,
        decision: Decision,
        failed: set[str],
        may_go_on: Callable[[Offer], bool],
    ) -> Answer | None:
        """Return the first bytes of the rest, which `call` requests; None if no backend can continue.

        Skips labels in `failed` and adds those of backends that cannot continue. The context then has the backend.
        """
        for candidate in decision.candidates:
            offer = candidate.offer
            if offer.label in failed or not may_go_on(offer):
                continue
            self.slots.move(context, offer)
            try:
                answer = await self.opener.open_rest(context, call, decision, offer)
            except (ServiceError, GenerationError) as error:
                log.warning("answer not continued", request_id=call.id, lane=offer.label, reason=str(error))
                self.metrics.continuations.labels(offer.lane, "failed").inc()
                failed.add(offer.label)
                continue
            # For the request log; the caller already has the headers.
            context.continued_on += (offer.label,)
            self.metrics.continuations.labels(offer.lane, "begun").inc()
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
        note("still looking for a backend that continues")

    timer = loop.call_later(_SILENCE_S, say)
    try:
        yield
    finally:
        timer.cancel()
