"""Tries one backend, up to the first bytes of its answer."""

from dataclasses import dataclass

from cluster.errors import GenerationError, StageLost
from gateway.errors import FirstByteLate
from gateway.lanes.base import Answer, Call, Lanes, Offer
from gateway.lanes.preemptible.admission import OWN
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.metrics.metrics import Metrics
from gateway.routing.dispatch import Dispatch
from gateway.routing.patience import give_up_after_s
from runtime.errors import LaneFailed

_OK = 200


@dataclass(frozen=True, slots=True)
class Attempts:
    """Opens answers at backends. `first_byte_s` is the setting of the pool, in seconds."""

    lanes: Lanes
    jobs: PreemptibleJobs
    metrics: Metrics
    first_byte_s: float

    async def begin(self, call: Call, offer: Offer, dispatch: Dispatch) -> Answer:
        """Open the answer and report a failure to routing; the caller reports the end. Raises what `Lane.open` raises.

        No preemptible request was admitted since the request came. Running preemptible requests are stopped only if it
        needs own machines.
        """
        try:
            if self.jobs.stays and offer.lane in OWN:
                await self.jobs.make_way()
            wait_s = self.first_byte_s
            if dispatch.chosen:
                wait_s = give_up_after_s(dispatch.chosen.predicted, call.request.tokens_limit, wait_s)
            answer = await self.lanes[offer.lane].open(call, offer, wait_s)
        except LaneFailed as error:
            self.note_error(offer, error)
            if isinstance(error, FirstByteLate):
                dispatch.gave_up()
            dispatch.refused(error)
            raise
        except StageLost as error:
            self.note_error(offer, error)
            dispatch.left()
            raise
        except BaseException:
            dispatch.left()  # an error caused by the request is not the backend's failure
            raise
        dispatch.first_byte()
        return answer

    def note_error(self, offer: Offer | None, error: LaneFailed | GenerationError) -> None:
        """Record a backend's failure in the metrics, before or after its first byte."""
        if offer:
            kind = error.kind if isinstance(error, LaneFailed) else "failed"
            self.metrics.upstream_errors.labels(offer.lane, kind).inc()


def is_stream(answer: Answer) -> bool:
    """Return whether it is an answer in events."""
    return answer.status == _OK and answer.content_type.startswith("text/event-stream")
