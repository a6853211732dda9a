"""Continues a broken stream at a replica: another backend with the same weights, after the same tokens.

Replicas are other gateways' clusters and our own. Every token's draw depends only on the seed and the position. So
the caller gets the answer of an unbroken stream, including tools, schemas and several choices.

    first:        chunk chunk chunk | lost
    second:                           chunk chunk done     asked with the tokens of the first three
    caller:       chunk chunk chunk   chunk chunk done
"""

import secrets

import structlog
from msgspec import structs

from cluster.errors import ContextLengthExceeded, GenerationError, RequestInvalid
from gateway.dialects.openai import GENERATES, Extras
from gateway.lanes.base import Answer, Call, Offer, Out
from gateway.lanes.cluster.resumption import has_one_prompt
from gateway.requests.attempt import is_stream
from gateway.requests.context import DecidedCall, RequestContext
from gateway.requests.failover_target import FailoverTargets, keeping_awake
from gateway.requests.resumable_stream import PartUseless, ResumableStream
from runtime.errors import LaneBrokeOff, LaneFailed

log = structlog.get_logger(__name__)

# An answer that breaks off at several replicas in turn may be the cause itself.
_LOSSES_MAX = 8
_SEED_BITS = 61
# Errors caused by the request. They do not count against the backend, and every replica would return the same.
_OF_THE_REQUEST = (RequestInvalid, ContextLengthExceeded)


def with_replicas(context: RequestContext) -> Call:
    """Return the call, prepared so that a replica can continue it, if its first candidate has a replica.

    For nearly all calls, one check shows that it has none.
    """
    candidates, call = context.decision.candidates, context.call
    if not candidates or not candidates[0].offer.weights or not _can_be_resumed(call):
        return call
    weights = candidates[0].offer.weights
    if not any(_is_free_replica(candidate.offer, weights) for candidate in candidates[1:]):
        return call
    request = call.generation
    # The caller's expected weights do not matter between replicas: `lasting` filters the forwarded part.
    extras = structs.replace(request.millrace or Extras(), resumable=True, weights=None)
    seed = request.seed
    if seed is None and request.temperature != 0:
        seed = secrets.randbits(_SEED_BITS)
    return structs.replace(call, request=structs.replace(request, millrace=extras, seed=seed))


def lasting(targets: FailoverTargets, context: RequestContext, decided: DecidedCall, answer: Answer) -> Answer:
    """Return an answer that replicas continue, if the call was prepared for it."""
    if decided.call is context.call:
        return answer
    offer, extras = context.offer, context.call.request.millrace
    if offer is None or not offer.weights or not is_stream(answer):
        return answer
    tells = extras is not None and extras.resumable and extras.weights in (None, offer.weights)
    body = ReplicaBody(targets, context, decided.call, offer.weights, answer, tells=tells)
    return structs.replace(answer, body=body)


class ReplicaBody:
    """The body of an answer that is resumed at replicas of its backend. Its first part's meter has the sum."""

    def __init__(
        self,
        targets: FailoverTargets,
        context: RequestContext,
        call: Call,
        weights: str,
        answer: Answer,
        *,
        tells: bool,
    ) -> None:
        self._targets = targets
        self._context = context
        self._call = call
        self._weights = weights
        self._first = self._part = answer
        self._tells = tells
        self._spent_ns = 0
        self._losses = 0
        self._failed: set[str] = set()
        """Labels of backends that have failed since the answer's last progress."""
        self._tokens = 0

    async def send(self, out: Out) -> None:
        """Send the answer. Raises the last backend's error."""
        stream = ResumableStream(out, self._call.generation.n or 1, passes_records=self._tells)
        try:
            while not await self._send_part(stream):
                pass
        finally:
            # Count only here: a continuation from the text, after all replicas, adds to it.
            self._count(stream)

    async def close(self) -> None:
        await self._part.body.close()

    async def _send_part(self, stream: ResumableStream) -> bool:
        """Return whether the answer is complete; if not, the next part has begun.

        Raises errors that no replica can fix.
        """
        try:
            await self._send_all(stream)
        except _OF_THE_REQUEST:
            self._leave()
            raise
        except (LaneFailed, GenerationError) as error:
            broken = self._context.offer
            await self._part.body.close()
            if not await self._go_on(stream, error):
                raise
            self._targets.attempts.note_error(broken, error)  # the handler of a raised error records it
            return stream.is_done
        if self._part is not self._first:
            self._leave()
        return True

    async def _send_all(self, stream: ResumableStream) -> None:
        """Send the part up to its end. Raises LaneBrokeOff if it ends with an error event or is implausible."""
        try:
            await self._part.body.send(stream)
            stream.end()
        except PartUseless:
            await self._part.body.close()
        if stream.failure:
            label = self._context.offer.label if self._context.offer else ""
            raise LaneBrokeOff(f"{label} was interrupted: {stream.failure}")

    def _leave(self) -> None:
        """Report the part's end; routing ignores its time and tokens, which are not those of a whole answer."""
        if self._context.dispatch:
            self._context.dispatch.left()

    def _note_loss(self, stream: ResumableStream) -> None:
        """After progress, allow failed backends again: they may be back."""
        context, tokens = self._context, stream.tokens
        if tokens > self._tokens:
            self._failed.clear()
        self._tokens = tokens
        self._losses += 1
        self._failed.add(context.offer.label if context.offer else "")
        if context.dispatch:
            context.dispatch.failed()

    async def _go_on(self, stream: ResumableStream, error: Exception) -> bool:
        self._note_loss(stream)
        context = self._context
        if stream.is_delivered(with_usage=self._call.generation.wants_usage):
            log.warning("only the end of the answer was missing", request_id=context.call.id, reason=str(error))
            stream.finish()
            return True
        if self._losses > _LOSSES_MAX or not stream.can_go_on:
            return False
        decision = self._targets.router.decide(context.caller, self._call)
        call = _resumed(self._call, stream)
        with keeping_awake(stream.note):
            rest = await self._targets.open(context, call, decision, self._failed, self._may_go_on)
        if rest is None:
            return False
        log.warning(
            "answer continues on a replica",
            request_id=call.id,
            reason=str(error),
            tokens=stream.tokens,
            replica=context.lane,
        )
        self._spent_ns += self._part.meter.compute_ns
        self._part = rest
        stream.join()
        return True

    def _may_go_on(self, offer: Offer) -> bool:
        return _is_free_replica(offer, self._weights)

    def _count(self, stream: ResumableStream) -> None:
        """Count the usage of all parts together: the last part's count includes what the earlier ones reported.

        If the last part did not reach its end, the text that the caller received is counted.
        """
        sum_, part = self._first.meter, self._part.meter
        is_whole = part.is_complete and not stream.failure
        if part is not sum_:
            sum_.take(part)
            sum_.finish_reasons = part.finish_reasons
            sum_.compute_ns = self._spent_ns + part.compute_ns
        if not is_whole and stream.is_known:
            sum_.completion_tokens = stream.tokens
        sum_.is_complete = is_whole or stream.is_done


def _resumed(call: Call, stream: ResumableStream) -> Call:
    extras = structs.replace(call.request.millrace or Extras(), resume=stream.had)
    return structs.replace(call, request=structs.replace(call.request, millrace=extras))


def _is_free_replica(offer: Offer, weights: str) -> bool:
    return offer.weights == weights and offer.price is None


def _can_be_resumed(call: Call) -> bool:
    """Return whether this gateway may resume the answer. If the request itself resumes one, its client does it."""
    request = call.request
    if call.kind not in GENERATES or not request.is_stream or (request.millrace and request.millrace.resume):
        return False
    return has_one_prompt(call.generation)
