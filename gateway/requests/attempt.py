"""Tries one backend, up to the first bytes of its answer."""

import asyncio

from cluster.errors import GenerationError, StageLost
from gateway.lanes.base import Answer, Call, Offer
from gateway.lanes.preemptible.admission import OWN
from gateway.routing.dispatch import Dispatch
from gateway.routing.patience import give_up_after_s
from gateway.services import Services
from runtime.errors import LaneFailed, LaneTimeout


async def begin(services: Services, call: Call, offer: Offer, dispatch: Dispatch) -> Answer:
    """Open the answer and report a failure to routing; the caller reports the end. Raises what `Lane.open` raises.

    No preemptible request was admitted since the request came. Running preemptible requests are stopped only if it
    needs own machines.
    """
    try:
        if services.preemptible_jobs.stays and offer.lane in OWN:
            await services.preemptible_jobs.make_way()
        if offer.lane == "pool":
            answer = await _open_in_time(services, call, offer, dispatch)
        else:
            answer = await services.lanes[offer.lane].open(call, offer)
    except LaneFailed as error:
        note_error(services, offer, error)
        dispatch.refused(error)
        raise
    except StageLost as error:
        note_error(services, offer, error)
        dispatch.left()
        raise
    except BaseException:
        dispatch.left()  # an error caused by the request is not the backend's failure
        raise
    dispatch.first_byte()
    return answer


async def _open_in_time(services: Services, call: Call, offer: Offer, dispatch: Dispatch) -> Answer:
    """Open the answer at its lane. Also raises LaneTimeout; other lanes have their own timeouts."""
    wait_s = services.settings.pool.first_byte_s
    if dispatch.chosen:
        wait_s = give_up_after_s(dispatch.chosen.predicted, call.request.tokens_limit, wait_s)
    try:
        async with asyncio.timeout(wait_s) as bound:
            return await services.lanes[offer.lane].open(call, offer)
    except TimeoutError:
        if not bound.expired():
            raise
        dispatch.gave_up()
        raise LaneTimeout(f"{offer.backend} did not answer within {wait_s:.0f} s") from None


def note_error(services: Services, offer: Offer | None, error: LaneFailed | GenerationError) -> None:
    """Record a backend's failure in the metrics, before or after its first byte."""
    if offer:
        kind = error.kind if isinstance(error, LaneFailed) else "failed"
        services.metrics.upstream_errors.labels(offer.lane, kind).inc()
