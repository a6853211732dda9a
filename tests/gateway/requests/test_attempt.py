"""What is counted of a try that fails: that its backend failed, not that the request was wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.errors import ContextLengthExceeded, GenerationError, StageLost
from gateway.dialects.openai import read_request
from gateway.lanes.base import Answer, Call, Offer
from gateway.requests.attempt import Attempts
from gateway.requests.context import UNDECIDED
from gateway.settings import LaneName
from tests.gateway.http.edges import question
from tests.gateway.requests.roads import road

pytestmark = pytest.mark.anyio


class FailingLane:
    """A cluster that ends every request so."""

    name: LaneName = "cluster"

    def __init__(self, error: GenerationError) -> None:
        self._error = error

    def models(self) -> list[str]:
        return ["m"]

    def offers(self, model: str) -> list[Offer]:
        return [Offer("cluster", "here", model)]

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        raise self._error


@pytest.mark.parametrize(
    ("make", "count"),
    [(lambda: StageLost("lost"), 1), (lambda: ContextLengthExceeded("too long"), 0)],
)
async def test_a_cluster_that_is_lost_before_the_first_byte_is_counted(
    tmp_path: Path, make: Callable[[], GenerationError], count: int
) -> None:
    raw = question()
    call = Call("req_1", "chat", read_request("chat", raw), raw, "ann")
    async with road(tmp_path) as running:
        error = make()
        lane = FailingLane(error)
        services = running.services
        attempts = Attempts({"cluster": lane}, services.preemptible_jobs, services.metrics, first_byte_s=60)
        (offer,) = lane.offers("m")
        dispatch = services.router.began(offer.label, UNDECIDED, offer)
        with pytest.raises(type(error)):
            await attempts.begin(call, offer, dispatch)
        assert services.metrics.upstream_errors.labels("cluster", "failed").value == count
        assert services.health.of(offer.label).in_flight == 0
