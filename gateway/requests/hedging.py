"""Asks a second backend if the first is slow to begin. The first to begin answers, and the other is stopped.

Only between own backends, which cost nothing, with equal clearance, and only if the second one has room. Without
such a backend, a silent first one is abandoned, and the next candidate is asked in its place.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from msgspec import Struct

from gateway.errors import LaneBusy
from gateway.lanes.base import Answer, Call, Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.attempt import Attempts
from gateway.requests.context import RequestContext
from gateway.requests.queue_slot import QueueSlots
from gateway.routing.decision import Candidate
from gateway.routing.dispatch import Dispatch
from gateway.routing.health import LaneHealth
from gateway.routing.patience import Patience, late_after_s
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from runtime.afterwork import Afterwork
from runtime.errors import LaneFailed, LaneTimeout

log = structlog.get_logger(__name__)

# The interval at which a request that waits for its first byte checks its backend and the others, in seconds.
_LOOK_EVERY_S = 1.0


def are_equal(first: Offer, second: Offer) -> bool:
    """Return whether the second may be asked beside the first: never if either charges. Pure."""
    if first.price is not None or second.price is not None or first.label == second.label:
        return False
    return (first.model, first.clearance) == (second.model, second.clearance)


class Begun(Struct, frozen=True):
    """An answer that has begun, and its backend."""

    answer: Answer
    offer: Offer
    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Hedges:
    """Opens an answer at one backend, and at a second one if the first is slow. `is_enabled` is the setting."""

    attempts: Attempts
    slots: QueueSlots
    turns: Turns
    router: Router
    health: LaneHealth
    metrics: Metrics
    afterwork: Afterwork
    is_enabled: bool
    patience: Patience = field(default_factory=Patience)

    async def open(
        self, context: RequestContext, call: Call, offer: Offer, dispatch: Dispatch, others: Sequence[Candidate]
    ) -> Begun:
        """Return the first bytes from `offer`, or from another candidate that was asked later and began earlier.

        The request then has the slot of the one that began. Also raises LaneTimeout if the next candidate should be
        asked: the backend answers no probes, or half of the request's time is over.
        """
        times = self.patience.of(offer, is_stream=call.request.is_stream)
        began_s = context.elapsed_s
        begun = await _Race(self, context, call, offer, dispatch, others, times.mostly_s).run()
        # If the other one won, this one would have taken longer.
        times.add(context.elapsed_s - began_s)
        return begun


class _Race:
    """One request between two backends. It waits for the first in its own task, at no cost."""

    def __init__(
        self,
        hedges: Hedges,
        context: RequestContext,
        call: Call,
        first: Offer,
        dispatch: Dispatch,
        others: Sequence[Candidate],
        mostly_s: float | None,
    ) -> None:
        self._hedges = hedges
        self._context = context
        self._call = call
        self._first = first
        self._dispatch = dispatch
        self._others = others
        self._is_hedged = hedges.is_enabled
        self._mostly_s = mostly_s if mostly_s is not None and self._is_hedged else math.inf
        self._late_s = math.inf
        if (chosen := dispatch.chosen) and chosen.known:
            self._late_s = late_after_s(chosen.predicted, chosen.known.rates)
        time_left_s = context.time_left_s
        self._half_s = math.inf if time_left_s is None else time_left_s / 2
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._task = asyncio.current_task()
        self._second: asyncio.Task[Begun] | None = None
        self._won: Begun | None = None
        self._left: LaneTimeout | None = None
        self._is_on = True
        self._is_moved = False
        """Ask the second one only if the first is really late, not just later than usual."""

    async def run(self) -> Begun:
        self._look_later()
        try:
            answer = await self._hedges.attempts.begin(self._call, self._first, self._dispatch)
            return Begun(answer, self._first, self._dispatch)
        except asyncio.CancelledError:
            # This code stopped it, unless the caller has disconnected as well.
            if (self._won is None and self._left is None) or (self._task and self._task.uncancel() > 0):
                raise
            if self._won:
                return self._take(self._won)
            assert self._left
            return await self._second_or(self._left)
        except LaneFailed as error:
            return await self._second_or(error)
        finally:
            # Do not await past this point: if the client disconnected here, the answer would never be closed.
            self._timer.cancel()
            self._is_on = False
            self._stop()

    async def _second_or(self, failure: LaneFailed) -> Begun:
        """Continue without the first one: return the second one's answer, or raise `failure`."""
        self._is_on = False
        if self._second is None:
            raise failure
        await asyncio.wait((self._second,))
        if self._second.cancelled() or self._second.exception():
            raise failure
        return self._take(self._second.result())

    def _look_later(self) -> None:
        waited_s = self._loop.time() - self._began_s
        due = [at_s - waited_s for at_s in (self._mostly_s, self._late_s, self._half_s) if at_s > waited_s]
        self._timer = self._loop.call_later(min(_LOOK_EVERY_S, *due), self._look)

    def _look(self) -> None:
        if not self._is_on:
            return
        waited_s = self._loop.time() - self._began_s
        if self._second is None:
            self._look_for_second(waited_s)
        if problem := self._why_leave(waited_s):
            self._leave(problem)
        else:
            self._look_later()

    def _look_for_second(self, waited_s: float) -> None:
        is_late = waited_s >= min(self._late_s, self._half_s)
        if waited_s >= self._mostly_s and not is_late:
            self._mostly_s = math.inf  # it is searched once
            second = next((c.offer for c in self._others if self._has_time(c.offer)), None)
            if second and self._hedges.patience.spend():
                self._start(second)
        elif is_late and self._is_hedged:
            is_mute = self._dispatch.is_mute
            second = next(
                (c.offer for c in self._others if self._has_time(c.offer) or (is_mute and self._takes_over(c))),
                None,
            )
            if second:
                self._is_moved = True
                self._start(second)

    def _start(self, second: Offer) -> None:
        self._second = asyncio.create_task(self._ask(second), name="hedge")
        self._second.add_done_callback(self._ended)

    def _why_leave(self, waited_s: float) -> str:
        """Return why the request stops waiting for the first one; empty if it does not."""
        if self._first.lane == "pool" and (offer := self._offer_now()) and offer.state == "down":
            return f"received the request, and now {offer.note.partition('; ')[0]}"
        if self._second is not None:
            return ""
        # Do not leave a backend that answers other requests: all of them would move to the next one, and back.
        is_late = waited_s >= self._late_s and any(map(self._is_lively, self._others))
        if (is_late or waited_s >= self._half_s) and self._dispatch.is_mute:
            return f"answered neither this request within {waited_s:.1f} s nor any other"
        return ""

    def _offer_now(self) -> Offer | None:
        offers = self._hedges.attempts.lanes[self._first.lane].offers(self._first.model)
        return next((offer for offer in offers if offer.label == self._first.label), None)

    def _leave(self, problem: str) -> None:
        if self._task is None:
            return
        self._is_on = False
        self._judge()
        self._left = LaneTimeout(f"{self._first.label} {problem}")
        self._hedges.attempts.note_error(self._first, self._left)
        self._task.cancel()

    def _judge(self) -> None:
        """Count a pool backend as failed if it is late and is answering no other request either."""
        waited_s = self._loop.time() - self._began_s
        if self._first.lane == "pool" and waited_s >= self._late_s and self._dispatch.is_mute:
            self._dispatch.failed()

    def _may_ask(self, offer: Offer) -> bool:
        """Return whether it is equivalent to the first, and healthy."""
        if not are_equal(self._first, offer) or not offer.is_resident or offer.state != "ready":
            return False
        health = self._hedges.health
        return not health.of(offer.label).breakers.barring(offer.model_there, health.now_s())

    def _has_time(self, offer: Offer) -> bool:
        """Return whether it may be asked and has a free slot."""
        if not self._may_ask(offer):
            return False
        if offer.slots is None:
            return self._hedges.health.of(offer.label).in_flight == 0
        return self._hedges.turns.has_room(offer.label, offer.slots)

    def _is_lively(self, candidate: Candidate) -> bool:
        """Return whether it may be asked, and has begun answers since the first one got this request."""
        known = candidate.known
        return self._may_ask(candidate.offer) and bool(known and known.rates.heard_s > self._dispatch.began_s)

    def _takes_over(self, candidate: Candidate) -> bool:
        """Return whether it makes progress on its work while the first one does nothing."""
        offer = candidate.offer
        return self._is_lively(candidate) and self._hedges.turns.has_room(offer.label, offer.slots)

    async def _ask(self, offer: Offer) -> Begun:
        hedges, context = self._hedges, self._context
        if not hedges.turns.try_take(offer.label, offer.slots):
            raise LaneBusy(f"{offer.label} has no more room")
        try:
            dispatch = hedges.router.began(offer.label, context.decision, offer)
            return Begun(await hedges.attempts.begin(self._call, offer, dispatch), offer, dispatch)
        except BaseException:
            hedges.turns.leave(offer.label)
            raise

    def _ended(self, second: "asyncio.Task[Begun]") -> None:
        if second.cancelled():
            return
        if problem := second.exception():
            log.warning("hedge failed", request_id=self._call.id, reason=str(problem))
        elif self._is_on and self._task:
            self._is_on = False
            self._judge()
            self._won = second.result()
            self._task.cancel()

    def _take(self, begun: Begun) -> Begun:
        """Make the second one's slot the request's."""
        self._second = None
        self._hedges.slots.take_over(self._context, begun.offer.label)
        self._hedges.metrics.hedges.labels("moved" if self._is_moved else "won").inc()
        return begun

    def _stop(self) -> None:
        """Stop the second request, which is no longer needed."""
        second, self._second = self._second, None
        if second is None:
            return
        self._hedges.metrics.hedges.labels("lost").inc()
        second.cancel()
        self._hedges.afterwork.begin(self._put_away(second))

    async def _put_away(self, second: "asyncio.Task[Begun]") -> None:
        """Close its answer, which may have begun at the moment of the stop."""
        await asyncio.wait((second,))
        if second.cancelled() or second.exception():
            return
        begun = second.result()
        try:
            await begun.answer.body.close()
        finally:
            begun.dispatch.left()
            self._hedges.turns.leave(begun.offer.label)
