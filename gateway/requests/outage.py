"""Waits for another gateway that restarts, if it alone can answer a request.

It returns within a minute or two, with the same models, and answers requests that it had not begun to answer.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.errors import LaneUnreachable
from gateway.lanes.base import Offer
from gateway.lanes.pool.backend import Backend
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.members import Pool
from gateway.routing.decision import Decision
from gateway.services import Services
from runtime.errors import LaneBrokeOff, LaneFailed, LaneTimeout

# The request stops waiting for a gateway that has not answered for this long.
RESTART_S = 120.0


class Failure(NamedTuple):
    """A request's failure at one backend; `at_s` is on the clock of the backends' health."""

    offer: Offer
    at_s: float
    is_cut: bool
    """Whether its connection failed and a retry is free: it received nothing, or its own cluster did the work."""

    @classmethod
    def of(cls, services: Services, offer: Offer, error: LaneFailed) -> "Failure":
        broke_off = isinstance(error, LaneBrokeOff) and not isinstance(error, LaneTimeout)
        is_cut = isinstance(error, LaneUnreachable) or (broke_off and bool(offer.weights))
        return cls(offer, services.health.now_s(), is_cut)


Failures = Mapping[tuple[str, str], Failure]
"""A request's failures, by the backend's label and the model's name."""


def find_outage(services: Services, decision: Decision, failed: Failures) -> str | None:
    """Return the outage to wait for, if a gateway that answered recently is unreachable; it is probed soon."""
    away = [failure.offer for failure in failed.values() if _is_away(services, failure)]
    for rejection in decision.rejections:
        offer, check = rejection.offer, rejection.objection.check
        if check == "down" or (check == "breaker" and _is_unsure(services, offer)):
            away.append(offer)
    for offer in away:
        backend = _gateway(services, offer)
        if backend and backend.asked_s and services.health.now_s() - backend.asked_s < RESTART_S:
            _pool(services).doubt(offer.backend)
            return f"{offer.label} restarts"
    return None


def answers_again(services: Services, offer: Offer, failed: Failures) -> bool:
    """Return whether a request may go there after its failures: only a gateway that was away may get it again."""
    failure = failed.get((offer.label, offer.model))
    return failure is None or (failure.is_cut and offer.is_gateway and not _is_away(services, failure))


def _is_away(services: Services, failure: Failure) -> bool:
    """Return whether its connection failed and it has not answered since."""
    backend = _gateway(services, failure.offer) if failure.is_cut else None
    return backend is not None and (backend.asked_s or 0.0) < failure.at_s


def _is_unsure(services: Services, offer: Offer) -> bool:
    """Return whether its requests failed, and no probe has shown yet whether it is reachable."""
    backend = _gateway(services, offer)
    failed_s = services.health.of(offer.label).breakers.failed_s(offer.model_there)
    return backend is not None and (backend.asked_s or 0.0) < failed_s


def _gateway(services: Services, offer: Offer) -> Backend | None:
    return _pool(services).get(offer.backend) if offer.is_gateway else None


def _pool(services: Services) -> Pool:
    """Return the pool lane, the only one with other gateways."""
    lane = services.lanes["pool"]
    assert isinstance(lane, PoolLane)
    return lane.pool
