"""Waits for another gateway that restarts, if it alone can answer a request.

It returns within a minute or two, with the same models, and answers requests that it had not begun to answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import LaneUnreachable
from gateway.lanes.base import Offer
from gateway.lanes.pool.backend import Backend
from gateway.lanes.pool.members import Pool
from gateway.routing.decision import Decision
from gateway.routing.health import LaneHealth
from runtime.errors import LaneBrokeOff, LaneFailed, LaneTimeout

# The request stops waiting for a gateway that has not answered for this long.
RESTART_S = 120.0


class Failure(NamedTuple):
    """A request's failure at one backend; `at_s` is on the clock of the backends' health."""

    offer: Offer
    at_s: float
    is_cut: bool
    """Whether its connection failed and a retry is free: it received nothing, or its own cluster did the work."""


Failures = Mapping[tuple[str, str], Failure]
"""A request's failures, by the backend's label and the model's name."""


@dataclass(frozen=True, slots=True)
class Outages:
    """Finds other gateways, which are backends of the pool, that restart."""

    health: LaneHealth
    pool: Pool

    def failure(self, offer: Offer, error: LaneFailed) -> Failure:
        broke_off = isinstance(error, LaneBrokeOff) and not isinstance(error, LaneTimeout)
        is_cut = isinstance(error, LaneUnreachable) or (broke_off and bool(offer.weights))
        return Failure(offer, self.health.now_s(), is_cut)

    def find(self, decision: Decision, failed: Failures) -> str | None:
        """Return the outage to wait for, if a gateway that answered recently is unreachable; it is probed soon."""
        away = [failure.offer for failure in failed.values() if self._is_away(failure)]
        for rejection in decision.rejections:
            offer, check = rejection.offer, rejection.objection.check
            if check == "down" or (check == "breaker" and self._is_unsure(offer)):
                away.append(offer)
        for offer in away:
            backend = self._gateway(offer)
            if backend and backend.asked_s and self.health.now_s() - backend.asked_s < RESTART_S:
                self.pool.doubt(offer.backend)
                return f"{offer.label} restarts"
        return None

    def answers_again(self, offer: Offer, failed: Failures) -> bool:
        """Return whether a request may go there after its failures: only to a gateway that was away."""
        failure = failed.get((offer.label, offer.model))
        return failure is None or (failure.is_cut and offer.is_gateway and not self._is_away(failure))

    def _is_away(self, failure: Failure) -> bool:
        """Return whether its connection failed and it has not answered since."""
        backend = self._gateway(failure.offer) if failure.is_cut else None
        return backend is not None and (backend.asked_s or 0.0) < failure.at_s

    def _is_unsure(self, offer: Offer) -> bool:
        """Return whether its requests failed, and no probe has shown yet whether it is reachable."""
        backend = self._gateway(offer)
        failed_s = self.health.of(offer.label).breakers.failed_s(offer.model_there)
        return backend is not None and (backend.asked_s or 0.0) < failed_s

    def _gateway(self, offer: Offer) -> Backend | None:
        return self.pool.get(offer.backend) if offer.is_gateway else None
