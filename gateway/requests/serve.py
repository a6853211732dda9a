"""The path of a request: admit, decide, wait, open, send, settle; each step is one module."""

from dataclasses import dataclass

from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call
from gateway.requests.client import Client
from gateway.requests.context import DecidedCall, RequestContext
from gateway.requests.entry import Admittance
from gateway.requests.failover_target import FailoverTargets
from gateway.requests.holds import RequestFunds
from gateway.requests.incremental_hold import rolled
from gateway.requests.opener import AnswerOpener
from gateway.requests.queue_slot import QueueSlots
from gateway.requests.replica_failover import lasting, with_replicas
from gateway.requests.sender import Sender
from gateway.requests.settlement import RequestSettler


@dataclass(frozen=True, slots=True)
class RequestPath:
    """Answers calls. One event loop owns it."""

    entry: Admittance
    slots: QueueSlots
    opener: AnswerOpener
    targets: FailoverTargets
    funds: RequestFunds
    sender: Sender
    settler: RequestSettler

    async def serve(self, caller: Caller, call: Call, client: Client) -> None:
        """Answer a call.

        Raises errors that gateway.errors maps to a status; later errors are the answer's last event.
        """
        context = RequestContext.begin(call, caller)
        try:
            answer = await self._answer(context)
        except BaseException as error:
            context.is_left = client.is_gone
            self.settler.refuse(context, error)
            if lead := context.admitted.lead:
                await lead.end(has_failed=isinstance(error, Exception))
            raise
        try:
            await self.sender.send(context, answer, client)
        finally:
            if lead := context.admitted.lead:
                await lead.end()

    async def _answer(self, context: RequestContext) -> Answer:
        """Return an answer that exists already, or one that a backend has begun."""
        if found := await self.entry.admit(context):
            return found
        if not self.slots.decide(context):
            await self.slots.take_turn(context)
        at_s = context.elapsed_s
        context.decided = decided = DecidedCall(with_replicas(context), at_s)
        answer = await self.opener.open_first(context, decided)
        answer = rolled(self.funds, context, lasting(self.targets, context, decided, answer))
        if (lead := context.admitted.lead) is None:
            return answer
        return lead.show(answer, is_paid=context.offer is not None and context.offer.price is not None)
