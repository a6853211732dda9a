"""A second backend beside one that is slow to begin: who begins first answers, the other is stopped at once.

Only between own backends, which cost nothing, with equal clearance, and only where the second one has room.
"""

import asyncio
from dataclasses import dataclass

import structlog

from gateway.errors import LaneBusy, LaneFailed
from gateway.journey.attempt import begin
from gateway.journey.trip import Trip
from gateway.lanes.base import Answer, Offer
from gateway.routing.dispatch import Dispatch
from gateway.services import Services

log = structlog.get_logger(__name__)


def are_equal(first: Offer, second: Offer) -> bool:
    """Whether the second may be asked beside the first, by what they are: never where either charges. Pure."""
    if first.price is not None or second.price is not None or first.label == second.label:
        return False
    return (first.model, first.clearance) == (second.model, second.clearance)


async def open_hedged(services: Services, trip: Trip, offer: Offer, dispatch: Dispatch) -> Answer:
    """The first bytes from there, or from another one that was asked later and had them earlier."""
    times = services.patience.of(offer, is_stream=trip.call.request.is_stream)
    began_s = trip.elapsed_s
    if times.mostly_s is None:
        answer = await begin(services, trip.call, offer, dispatch)
    else:
        answer = await _Race(services, trip, offer).run(dispatch, times.mostly_s)
    # Where the other one won, this one would have taken longer still.
    times.add(trip.elapsed_s - began_s)
    return answer


@dataclass(frozen=True, slots=True)
class _Begun:
    """The second backend's answer, and what it has taken."""

    answer: Answer
    offer: Offer
    dispatch: Dispatch
    turn: str


class _Race:
    """One request between two backends. The first is waited for in the request's own task, which costs nothing."""

    def __init__(self, services: Services, trip: Trip, first: Offer) -> None:
        self._services = services
        self._trip = trip
        self._first = first
        self._task = asyncio.current_task()
        self._second: asyncio.Task[_Begun] | None = None
        self._won: _Begun | None = None
        self._is_on = True

    async def run(self, dispatch: Dispatch, after_s: float) -> Answer:
        timer = asyncio.get_running_loop().call_later(after_s, self._start)
        try:
            return await begin(self._services, self._trip.call, self._first, dispatch)
        except asyncio.CancelledError:
            # It was the second one's success that stopped us, unless the caller has left as well.
            if self._won is None or (self._task and self._task.uncancel() > 0):
                raise
            return self._take(self._won)
        except LaneFailed:
            self._is_on = False
            if self._second is None:
                raise
            await asyncio.wait((self._second,))
            if self._second.cancelled() or self._second.exception():
                raise
            return self._take(self._second.result())
        finally:
            # Nothing is waited for from here on: whoever hung up then would leave an answer that nobody closes.
            timer.cancel()
            self._is_on = False
            self._stop()

    def _start(self) -> None:
        """The first one takes longer than it mostly does."""
        second = next((c.offer for c in self._trip.decision.candidates[1:] if self._may_ask(c.offer)), None)
        if self._is_on and second and self._services.patience.spend():
            self._second = asyncio.create_task(self._ask(second), name="hedge")
            self._second.add_done_callback(self._ended)

    def _may_ask(self, offer: Offer) -> bool:
        """Whether it is an equal of the first, and has nothing else to do with some of its room."""
        first, record = self._first, self._services.health.of(offer.label)
        if not are_equal(first, offer) or not offer.is_resident or offer.state != "ready":
            return False
        if record.breakers.barring(offer.model_there, self._services.health.now_s()):
            return False
        if offer.slots is None:
            return record.in_flight == 0
        return self._services.turns.has_room(offer.label, offer.slots)

    async def _ask(self, offer: Offer) -> _Begun:
        services, trip, turn = self._services, self._trip, offer.label
        if not services.turns.try_take(turn, offer.slots):
            raise LaneBusy(f"{turn} has no room any more")
        try:
            dispatch = services.router.began(offer.label, trip.decision, offer)
            return _Begun(await begin(services, trip.call, offer, dispatch), offer, dispatch, turn)
        except BaseException:
            services.turns.leave(turn)
            raise

    def _ended(self, second: "asyncio.Task[_Begun]") -> None:
        if second.cancelled():
            return
        if problem := second.exception():
            log.warning("hedge failed", request_id=self._trip.call.id, reason=str(problem))
        elif self._is_on and self._task:
            self._is_on = False
            self._won = second.result()
            self._task.cancel()

    def _take(self, begun: _Begun) -> Answer:
        """The second one's answer is the request's now."""
        trip = self._trip
        self._second = None
        if trip.turn is not None:
            self._services.turns.leave(trip.turn)
        trip.offer, trip.dispatch, trip.turn = begun.offer, begun.dispatch, begun.turn
        self._services.metrics.hedges.labels("won").inc()
        return begun.answer

    def _stop(self) -> None:
        """Nobody waits for the second one any more."""
        second, self._second = self._second, None
        if second is None:
            return
        self._services.metrics.hedges.labels("lost").inc()
        second.cancel()
        self._services.afterwork.begin(self._put_away(second))

    async def _put_away(self, second: "asyncio.Task[_Begun]") -> None:
        """It may have begun to answer in the very moment in which it was stopped."""
        await asyncio.wait((second,))
        if second.cancelled() or second.exception():
            return
        begun = second.result()
        try:
            await begun.answer.body.close()
        finally:
            begun.dispatch.left()
            self._services.turns.leave(begun.turn)
