"""Waits for a free slot, or for the end of a backend's pause, and updates the decision meanwhile."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import Struct, structs

from gateway.lanes.base import Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.context import RequestContext
from gateway.requests.outage import RESTART_S, Failures, Outages
from gateway.routing.decision import Candidate, Decision
from gateway.routing.health import LaneHealth
from gateway.routing.queueing.turns import Turns, Wish
from gateway.routing.router import Router
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


@dataclass(frozen=True, slots=True)
class QueueSlots:
    """Decides where requests go, and takes slots there, within `queue_s` seconds. One event loop owns it."""

    router: Router
    turns: Turns
    health: LaneHealth
    outages: Outages
    metrics: Metrics
    queue_s: float

    def decide(self, context: RequestContext) -> bool:
        """Rank the backends, and take a slot at the best if one is free. Return whether there is nothing to wait for.

        Raises RequestInvalid for invalid preferences.
        """
        context.decision = decision = self.router.decide(context.caller, context.call)
        return not decision.candidates or self._take_at_once(context, decision.candidates[0].offer)

    def _take_at_once(self, context: RequestContext, offer: Offer) -> bool:
        """Return whether the request may go there now; then it has taken a slot."""
        label = offer.label
        if not self.turns.try_take(label, offer.slots):
            return False
        context.slot = label
        return True

    async def take_turn(self, context: RequestContext) -> None:
        """Wait until the first candidate, which may change meanwhile, has room for the request.

        `context.slot` then has one of its slots, unless no candidate is left or the request changed queues too often.
        If the wait ends without a turn, the next best candidate with room is taken. Raises QueueFull if none has room.
        """
        for _ in range(_MOVES_MAX):
            if not context.decision.candidates:
                return
            best = context.decision.candidates[0]
            if self._take_at_once(context, best.offer):
                return
            began_s = time.monotonic()
            try:
                has_turn = await self._wait(context, best)
            except QueueFull:
                if not self._go_elsewhere(context):
                    raise
                return
            finally:
                self.metrics.queue_seconds.observe(time.monotonic() - began_s)
            if has_turn and self._still_serves(context, best.offer):
                return

    def first_pause(self, decision: Decision) -> Pause | None:
        """Return the first pause to end of those that excluded a candidate from the decision."""
        now_s, found = self.health.now_s(), []
        for rejection in decision.rejections:
            if rejection.objection.check == "breaker":
                offer = rejection.offer
                breaker = self.health.of(offer.label).breakers.of(offer.model_there)
                if breaker.asked_until_s > now_s:
                    name = f"{offer.label} {offer.model_there}"
                    found.append(Pause(name, breaker.asked_until_s - now_s, breaker.is_limit))
        return min(found, key=lambda pause: pause.left_s, default=None)

    async def wait_for_candidate(self, context: RequestContext, failed: Failures) -> bool:
        """Wait until a backend that did not fail may be asked. Sets a new decision, and takes a slot at its first.

        It waits for the end of a pause that a backend asked for, or for another gateway that restarts.
        False if there is neither, or if neither ends within the request's timeout.
        """
        self.leave(context)
        is_found = self._decide_again(context, failed)
        pause = self.first_pause(context.decision)
        if pause and pause.left_s > self._patience_s(context):
            pause = None
        outage = None if pause else self.outages.find(context.decision, failed)
        is_back = any((c.offer.label, c.offer.model) in failed for c in context.decision.candidates)
        if not (pause or outage or is_back):
            return False
        try:
            if pause and not is_found:
                await self._sit_out(context, pause.name, pause.left_s, lambda: self._decide_again(context, failed))
            elif outage and not is_found:
                await self._sit_out(context, outage, RESTART_S, lambda: self._is_over(context, failed))
            await self.take_turn(context)
        except QueueFull:
            return False
        return True

    def _is_over(self, context: RequestContext, failed: Failures) -> bool:
        """Return whether a candidate may be asked, or none is left to wait for."""
        if self._decide_again(context, failed):
            return True
        return not (self.first_pause(context.decision) or self.outages.find(context.decision, failed))

    async def _sit_out(
        self, context: RequestContext, name: str, request_s: float, is_over: Callable[[], bool]
    ) -> None:
        """Wait in a queue without slots until a new decision is possible. Raises QueueFull."""
        began_s, wish = time.monotonic(), self._wish(context, request_s)
        try:
            await self.turns.take(name, 0, wish, lambda _: is_over())
        finally:
            self.metrics.queue_seconds.observe(time.monotonic() - began_s)

    def _decide_again(self, context: RequestContext, failed: Failures) -> bool:
        """Return whether any candidate may be asked now; the context has the decision."""
        decision = _allowed(context, self.router.decide(context.caller, context.sent_call))
        candidates = tuple(c for c in decision.candidates if self.outages.answers_again(c.offer, failed))
        context.decision = structs.replace(decision, candidates=candidates)
        return bool(candidates)

    async def take_other_turn(self, context: RequestContext, rest: Iterable[Candidate]) -> None:
        """Take a slot at the best of the `rest` of the candidates that is not excluded. Raises QueueFull."""
        self.leave(context)
        context.decision = _allowed(context, structs.replace(context.decision, candidates=tuple(rest)))
        await self.take_turn(context)

    async def _wait(self, context: RequestContext, best: Candidate) -> bool:
        """Wait in this backend's queue. False if another decision became better; the context then has it."""
        offer, predicted = best.offer, best.predicted
        caller, record = context.caller, self.health.of(offer.label)
        wish = self._wish(context, max(0.0, predicted.time_s - predicted.wait_s))

        def is_better_elsewhere(ahead: int) -> bool:
            waiting, record.waiting = record.waiting, ahead
            decision = _allowed(context, self.router.explain(caller, context.sent_call))
            record.waiting = waiting
            if not self._leads_elsewhere(decision, offer):
                return False
            context.decision = decision
            return True

        record.waiting += 1
        try:
            return await self.turns.take(offer.label, offer.slots, wish, is_better_elsewhere)
        finally:
            record.waiting -= 1

    def _leads_elsewhere(self, decision: Decision, here: Offer) -> bool:
        """Return whether to leave the queue: a better candidate has room, or this one is no longer available."""
        label = here.label
        present = next(
            (candidate.offer for candidate in decision.candidates if candidate.offer.label == label), None
        )
        if present is None:
            return True
        self.turns.resize(label, present.slots)
        best = decision.candidates[0].offer
        return best.label != label and self.turns.has_room(best.label, best.slots)

    def _still_serves(self, context: RequestContext, offer: Offer) -> bool:
        """Take the slot, update the decision, and return whether it still allows this backend."""
        label = context.slot = offer.label
        record = self.health.of(label)
        waiting, record.waiting = record.waiting, 0  # later requests do not delay this one
        decision = _allowed(context, self.router.decide(context.caller, context.sent_call))
        record.waiting = waiting
        mine = [candidate for candidate in decision.candidates if candidate.offer.label == label]
        others = [candidate for candidate in decision.candidates if candidate.offer.label != label]
        context.decision = structs.replace(decision, candidates=(*mine, *others))
        if not mine:
            self.leave(context)
        return bool(mine)

    def _go_elsewhere(self, context: RequestContext) -> bool:
        """Take the next best with room, if the best has none for longer than the request may wait."""
        candidates = context.decision.candidates
        for at, candidate in enumerate(candidates):
            if self._take_at_once(context, candidate.offer):
                context.decision = structs.replace(context.decision, candidates=candidates[at:])
                return True
        return False

    def _wish(self, context: RequestContext, request_s: float) -> Wish:
        """Return the request for a slot. Console sessions have no API key, so fairness there is between users."""
        caller = context.caller
        key = caller.key_id or f"user:{caller.user_id}"
        return Wish(key, caller.priority, self._patience_s(context), request_s)

    def _patience_s(self, context: RequestContext) -> float:
        """Return the rest of the request's timeout, in seconds."""
        if (left_s := context.time_left_s) is not None:
            return left_s
        return max(0.0, self.queue_s - context.elapsed_s)

    def leave(self, context: RequestContext) -> None:
        """Release the request's slot, if it has one."""
        if context.slot is not None:
            self.turns.leave(context.slot)
            context.slot = None

    def move(self, context: RequestContext, offer: Offer) -> None:
        """Move the request to another backend immediately, with a slot there if one is free."""
        self.leave(context)
        self._take_at_once(context, offer)

    def take_over(self, context: RequestContext, label: str) -> None:
        """Note the slot that was taken for the request at another backend, and release the one that it had."""
        self.leave(context)
        context.slot = label


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
