"""Waits for a free slot, or for the end of a backend's pause, and updates the decision meanwhile."""

import math
import time
from collections.abc import Callable

from msgspec import Struct, structs

from gateway.lanes.base import Offer
from gateway.requests.context import RequestContext
from gateway.requests.outage import RESTART_S, Failures, answers_again, find_outage
from gateway.routing.decision import Candidate, Decision
from gateway.routing.queueing.turns import Wish
from gateway.services import Services
from runtime.errors import QueueFull

# How often decisions may move a request between queues. After that it goes to an allowed backend without waiting.
_MOVES_MAX = 8


class Pause(Struct, frozen=True):
    """A backend asked for a pause of a model: with 429 if `is_limit`, otherwise with 503."""

    name: str
    """The backend's label and its name for the model."""
    left_s: float
    is_limit: bool

    @property
    def retry_after_s(self) -> int:
        return max(1, math.ceil(self.left_s))


def take_at_once(services: Services, context: RequestContext, offer: Offer) -> bool:
    """Return whether the request may go there now; then it has taken a slot."""
    label = offer.label
    if not services.turns.try_take(label, offer.slots):
        return False
    context.turn = label
    return True


async def take_turn(services: Services, context: RequestContext) -> None:
    """Wait until the first candidate, which may change meanwhile, has room for the request.

    `context.turn` then has one of its slots, unless no candidate is left or the request changed queues too often.
    If the wait ends without a turn, the next best candidate with room is taken. Raises QueueFull if none has room.
    """
    for _ in range(_MOVES_MAX):
        if not context.decision.candidates:
            return
        best = context.decision.candidates[0]
        if take_at_once(services, context, best.offer):
            return
        began_s = time.monotonic()
        try:
            has_turn = await _wait(services, context, best)
        except QueueFull:
            if not _go_elsewhere(services, context):
                raise
            return
        finally:
            services.metrics.queue_seconds.observe(time.monotonic() - began_s)
        if has_turn and _still_serves(services, context, best.offer):
            return


def first_pause(services: Services, decision: Decision) -> Pause | None:
    """Return the first pause to end of those that excluded a candidate from the decision."""
    now_s, found = services.health.now_s(), []
    for rejection in decision.rejections:
        if rejection.objection.check == "breaker":
            offer = rejection.offer
            breaker = services.health.of(offer.label).breakers.of(offer.model_there)
            if breaker.asked_until_s > now_s:
                name = f"{offer.label} {offer.model_there}"
                found.append(Pause(name, breaker.asked_until_s - now_s, breaker.is_limit))
    return min(found, key=lambda pause: pause.left_s, default=None)


async def wait_for_candidate(services: Services, context: RequestContext, failed: Failures) -> bool:
    """Wait until a backend that did not fail may be asked. Sets a new decision, and takes a slot at its first.

    It waits for the end of a pause that a backend asked for, or for another gateway that restarts.
    False if there is neither, or if neither ends within the request's timeout.
    """
    _leave_turn(services, context)
    is_found = _decide_again(services, context, failed)
    pause = first_pause(services, context.decision)
    if pause and pause.left_s > _patience_s(services, context):
        pause = None
    outage = None if pause else find_outage(services, context.decision, failed)
    is_back = any((c.offer.label, c.offer.model) in failed for c in context.decision.candidates)
    if not (pause or outage or is_back):
        return False
    try:
        if pause and not is_found:
            await _sit_out(
                services, context, pause.name, pause.left_s, lambda: _decide_again(services, context, failed)
            )
        elif outage and not is_found:
            await _sit_out(services, context, outage, RESTART_S, lambda: _is_over(services, context, failed))
        await take_turn(services, context)
    except QueueFull:
        return False
    return True


def _is_over(services: Services, context: RequestContext, failed: Failures) -> bool:
    """Return whether a candidate may be asked, or none is left to wait for."""
    if _decide_again(services, context, failed):
        return True
    return not (first_pause(services, context.decision) or find_outage(services, context.decision, failed))


async def _sit_out(
    services: Services, context: RequestContext, name: str, request_s: float, is_over: Callable[[], bool]
) -> None:
    """Wait in a queue without slots until a new decision is possible. Raises QueueFull."""
    began_s, wish = time.monotonic(), _wish(services, context, request_s)
    try:
        await services.turns.take(name, 0, wish, lambda _: is_over())
    finally:
        services.metrics.queue_seconds.observe(time.monotonic() - began_s)


def _decide_again(services: Services, context: RequestContext, failed: Failures) -> bool:
    """Return whether any candidate may be asked now; the context has the decision."""
    decision = _allowed(context, services.router.decide(context.caller, context.call))
    candidates = tuple(c for c in decision.candidates if answers_again(services, c.offer, failed))
    context.decision = structs.replace(decision, candidates=candidates)
    return bool(candidates)


async def take_other_turn(services: Services, context: RequestContext) -> None:
    """Skip the excluded candidates, and take a slot at the best of the others. Raises QueueFull."""
    _leave_turn(services, context)
    context.decision = _allowed(context, context.decision)
    await take_turn(services, context)


def _allowed(context: RequestContext, decision: Decision) -> Decision:
    """Return the decision without excluded candidates; nearly all requests have none."""
    if context.may_pay and not context.refused_models:
        return decision
    candidates = tuple(
        candidate
        for candidate in decision.candidates
        if (context.may_pay or candidate.offer.price is None) and _is_open(context, candidate.offer)
    )
    return structs.replace(decision, candidates=candidates)


def _is_open(context: RequestContext, offer: Offer) -> bool:
    return context.refused_models.isdisjoint((offer.model, *offer.stands_for))


async def _wait(services: Services, context: RequestContext, best: Candidate) -> bool:
    """Wait in this backend's queue. False if another decision became better; the context then has it."""
    offer, predicted = best.offer, best.predicted
    caller, record = context.caller, services.health.of(offer.label)
    wish = _wish(services, context, max(0.0, predicted.time_s - predicted.wait_s))

    def is_better_elsewhere(ahead: int) -> bool:
        waiting, record.waiting = record.waiting, ahead
        decision = _allowed(context, services.router.explain(caller, context.call))
        record.waiting = waiting
        if not _leads_elsewhere(services, decision, offer):
            return False
        context.decision = decision
        return True

    record.waiting += 1
    try:
        return await services.turns.take(offer.label, offer.slots, wish, is_better_elsewhere)
    finally:
        record.waiting -= 1


def _leads_elsewhere(services: Services, decision: Decision, here: Offer) -> bool:
    """Return whether to leave the queue: a better candidate has room, or this one is no longer available."""
    label = here.label
    present = next((candidate.offer for candidate in decision.candidates if candidate.offer.label == label), None)
    if present is None:
        return True
    services.turns.resize(label, present.slots)
    best = decision.candidates[0].offer
    return best.label != label and services.turns.has_room(best.label, best.slots)


def _still_serves(services: Services, context: RequestContext, offer: Offer) -> bool:
    """Take the slot, update the decision, and return whether it still allows this backend."""
    label = context.turn = offer.label
    record = services.health.of(label)
    waiting, record.waiting = record.waiting, 0  # later requests do not delay this one
    decision = _allowed(context, services.router.decide(context.caller, context.call))
    record.waiting = waiting
    mine = [candidate for candidate in decision.candidates if candidate.offer.label == label]
    others = [candidate for candidate in decision.candidates if candidate.offer.label != label]
    context.decision = structs.replace(decision, candidates=(*mine, *others))
    if not mine:
        _leave_turn(services, context)
    return bool(mine)


def _go_elsewhere(services: Services, context: RequestContext) -> bool:
    """Take the next best with room, if the best has none for longer than the request may wait."""
    candidates = context.decision.candidates
    for at, candidate in enumerate(candidates):
        if take_at_once(services, context, candidate.offer):
            context.decision = structs.replace(context.decision, candidates=candidates[at:])
            return True
    return False


def _wish(services: Services, context: RequestContext, request_s: float) -> Wish:
    """Return the request for a slot. Console sessions have no API key, so fairness there is between users."""
    caller = context.caller
    key = caller.key_id or f"user:{caller.user_id}"
    return Wish(key, caller.priority, _patience_s(services, context), request_s)


def _patience_s(services: Services, context: RequestContext) -> float:
    """Return the rest of the request's timeout, in seconds."""
    if (left_s := context.time_left_s) is not None:
        return left_s
    return max(0.0, services.settings.routing.queue_s - context.elapsed_s)


def _leave_turn(services: Services, context: RequestContext) -> None:
    if context.turn is not None:
        services.turns.leave(context.turn)
        context.turn = None


def move_turn(services: Services, context: RequestContext, offer: Offer) -> None:
    """Move the request to another backend immediately, with a slot there if one is free."""
    _leave_turn(services, context)
    take_at_once(services, context, offer)
