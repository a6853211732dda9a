"""Continues a broken stream at a twin: another backend of the same weights, after the same tokens.

Twins are other gateways' clusters and our own. Every token's draw rests on the seed and the token's place alone:
the caller sees the answer that an unbroken stream would have been; tools, schemas and several choices included.

    first twin:   chunk chunk chunk | lost
    second twin:                      chunk chunk done     asked with the tokens of the first three
    caller:       chunk chunk chunk   chunk chunk done
"""

import secrets

import structlog
from msgspec import structs

from cluster.errors import ContextLengthExceeded, GenerationError, RequestInvalid
from gateway.dialects.openai import GENERATES, Extras
from gateway.lanes.base import Answer, Call, Offer, Out
from gateway.lanes.cluster.resumption import has_one_prompt
from gateway.requests.attempt import note_error
from gateway.requests.context import Trip
from gateway.requests.failover_target import is_stream, keeping_awake, open_elsewhere
from gateway.requests.resumable_stream import PartUseless, TakenStream
from gateway.services import Services
from runtime.errors import LaneBrokeOff, LaneFailed

log = structlog.get_logger(__name__)

# An answer that breaks off at one twin after the other may be what they break by.
_LOSSES_MAX = 8
_SEED_BITS = 61
# Errors caused by the request. They do not count against the backend, and every twin would return the same.
_OF_THE_REQUEST = (RequestInvalid, ContextLengthExceeded)


def with_twins(trip: Trip) -> Call:
    """The trip's call, prepared so that a twin can continue it, if its first candidate has a twin.

    For nearly all calls one look says that it has none.
    """
    candidates, call = trip.decision.candidates, trip.call
    if not candidates or not candidates[0].offer.weights or not _can_be_resumed(call):
        return call
    weights = candidates[0].offer.weights
    if not any(_is_free_twin(candidate.offer, weights) for candidate in candidates[1:]):
        return call
    request = call.generation
    # The weights that the caller expects do not matter between twins: `lasting` filters what is passed on.
    extras = structs.replace(request.millrace or Extras(), resumable=True, weights=None)
    seed = request.seed
    if seed is None and request.temperature != 0:
        seed = secrets.randbits(_SEED_BITS)
    return structs.replace(call, request=structs.replace(request, millrace=extras, seed=seed))


def lasting(services: Services, trip: Trip, asked: Call, answer: Answer) -> Answer:
    """The answer that twins continue, if the call was prepared for it. `asked` is the caller's request."""
    offer, extras = trip.offer, asked.request.millrace
    if trip.call is asked or offer is None or not offer.weights or not is_stream(answer):
        return answer
    tells = extras is not None and extras.resumable and extras.weights in (None, offer.weights)
    return structs.replace(answer, body=TwinsBody(services, trip, answer, tells=tells))


class TwinsBody:
    """The body of an answer that is resumed at twins of its backend. Its first part's meter has the sum."""

    def __init__(self, services: Services, trip: Trip, answer: Answer, *, tells: bool) -> None:
        assert trip.offer
        self._services = services
        self._trip = trip
        self._weights = trip.offer.weights
        self._first = self._part = answer
        self._tells = tells
        self._spent_ns = 0
        self._losses = 0
        self._failed: set[str] = set()
        """Labels of those that have failed since the answer last got any further."""
        self._tokens = 0

    async def send(self, out: Out) -> None:
        """Raises what the last backend broke off with."""
        stream = TakenStream(out, self._trip.call.generation.n or 1, passes_records=self._tells)
        try:
            while not await self._send_part(stream):
                pass
        finally:
            # Count only here: a continuation from the text, after all replicas, adds to it.
            self._count(stream)

    async def close(self) -> None:
        await self._part.body.close()

    async def _send_part(self, stream: TakenStream) -> bool:
        """Whether the answer is complete; if not, the next part has begun. Raises errors that no twin can fix."""
        try:
            await self._send_all(stream)
        except _OF_THE_REQUEST:
            self._leave()
            raise
        except (LaneFailed, GenerationError) as error:
            broken = self._trip.offer
            await self._part.body.close()
            if not await self._go_on(stream, error):
                raise
            note_error(self._services, broken, error)  # the handler of a raised error notes it itself
            return stream.is_done
        if self._part is not self._first:
            self._leave()
        return True

    async def _send_all(self, stream: TakenStream) -> None:
        """The part up to its end. Raises LaneBrokeOff for one that ends with an error event, or makes no sense."""
        try:
            await self._part.body.send(stream)
            stream.end()
        except PartUseless:
            await self._part.body.close()
        if stream.failure:
            label = self._trip.offer.label if self._trip.offer else ""
            raise LaneBrokeOff(f"{label} broke off: {stream.failure}")

    def _leave(self) -> None:
        """A part's time and tokens are not those of an answer: routing learns nothing of them."""
        if self._trip.dispatch:
            self._trip.dispatch.left()

    def _note_loss(self, stream: TakenStream) -> None:
        """Where it has got further, those that failed before may be asked once more: perhaps they are back."""
        trip, tokens = self._trip, stream.tokens
        if tokens > self._tokens:
            self._failed.clear()
        self._tokens = tokens
        self._losses += 1
        self._failed.add(trip.offer.label if trip.offer else "")
        if trip.dispatch:
            trip.dispatch.failed()

    async def _go_on(self, stream: TakenStream, error: Exception) -> bool:
        self._note_loss(stream)
        trip = self._trip
        if stream.is_told(with_usage=trip.call.generation.wants_usage):
            log.warning("answer lacked its end alone", request_id=trip.call.id, reason=str(error))
            stream.finish()
            return True
        if self._losses > _LOSSES_MAX or not stream.can_go_on:
            return False
        decision = self._services.router.decide(trip.caller, trip.call)
        call = _resumed(trip.call, stream)
        with keeping_awake(stream.note):
            rest = await open_elsewhere(self._services, trip, call, decision, self._failed, self._may_go_on)
        if rest is None:
            return False
        log.warning("answer goes on", request_id=call.id, reason=str(error), tokens=stream.tokens, twin=trip.lane)
        self._spent_ns += self._part.meter.compute_ns
        self._part = rest
        stream.join()
        return True

    def _may_go_on(self, offer: Offer) -> bool:
        return _is_free_twin(offer, self._weights)

    def _count(self, stream: TakenStream) -> None:
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


def _resumed(call: Call, stream: TakenStream) -> Call:
    extras = structs.replace(call.request.millrace or Extras(), resume=stream.had)
    return structs.replace(call, request=structs.replace(call.request, millrace=extras))


def _is_free_twin(offer: Offer, weights: str) -> bool:
    return offer.weights == weights and offer.price is None


def _can_be_resumed(call: Call) -> bool:
    """Whether this gateway may resume the answer. A request that itself resumes one is left to its client."""
    request = call.request
    if call.kind not in GENERATES or not request.is_stream or (request.millrace and request.millrace.resume):
        return False
    return has_one_prompt(call.generation)
