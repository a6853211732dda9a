"""The coordinator's loop: schedule, send, commit tokens, tell callers; from one pipeline to the next."""

import queue
import time
from pathlib import Path

import structlog

from cluster import wire
from cluster.embedding import EmbedRequest
from cluster.engine.costs import PipelineCosts
from cluster.engine.pipeline_links import PipelineBroken, PipelineEnd
from cluster.engine.request_table import RequestTable
from cluster.engine.running_pipeline import Pipeline, is_warm_up, warm_up
from cluster.engine.saved_prefixes import SavedPrefixes
from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.engine.tickets import Cancelled, Tell, Ticket, prepare_ticket, rejected
from cluster.errors import ClusterError, ClusterUnavailable, FrameInvalid, GenerationError, LinkError, StageLost
from cluster.generation import GenerateRequest
from cluster.models.grammar_check import missing
from cluster.models.model_card import read_card
from cluster.models.text import TextCodec
from cluster.net.transport import Frame
from cluster.plans.plan import BLOCK_TOKENS
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

_TICK_S = 1.0
# The interval at which the coordinator checks a step under way for lateness, in seconds.
_WATCH_S = 0.2
# If the coordinator reads the clock this much later than planned, this process itself was stopped or starved.
_STALL_S = 0.5


class Coordinator:
    """An actor with one inbox and one thread that decides and commits. Callers and links only put items.

    A broken pipeline loses no request: requests wait in the table, with their tokens, for the next pipeline.
    """

    def __init__(self, identity: Identity, host: str, report: Tell) -> None:
        self._report = report
        self._inbox: queue.SimpleQueue[Ticket | Cancelled | Frame | PipelineBroken | wire.Message | None] = (
            queue.SimpleQueue()
        )
        self.pipeline_end = PipelineEnd(identity, host, wire.Sampled, self._inbox.put)
        self.client_port = 0
        self._name_key = identity.derive_key("names of saved blocks")
        self.deployment = ""
        self._table = RequestTable()
        self._order: wire.AssignCoordinator | None = None
        self._broken_epoch = wire.ANY_EPOCH
        self._pipeline: Pipeline | None = None
        # A pipeline with the same partition takes over the last one's scheduler, and the stages that it did not
        # finish feeding.
        self._last_scheduler: Scheduler | None = None
        self._unfed_stages: set[int] = set()
        # The sequences that the last pipeline was computing when it broke.
        self._computing: set[Sequence] = set()
        self._codec: TextCodec | None = None
        self._codec_source = ""
        self._context_tokens = 0
        self._looked_s = time.monotonic()
        self._counted = True
        self._kv_blocks = 0

    def deliver(self, item: Ticket | Cancelled | wire.Message) -> None:
        """Put a message into the inbox. Any thread may call this."""
        if isinstance(item, wire.Removed):
            self.pipeline_end.disconnect(item.node_ids)
        else:
            self._inbox.put(item)

    def stop(self) -> None:
        self._inbox.put(None)

    async def prepare(self, request: GenerateRequest | EmbedRequest, tell: Tell) -> Ticket:
        """Return the request for `deliver`.

        Raise GenerationError if it cannot be served, ClusterUnavailable if there is no model.
        """
        if self._codec is None or not isinstance(request, GenerateRequest):
            raise ClusterUnavailable("no model is assigned to this coordinator")
        return await prepare_ticket(request, self._codec, self._context_tokens, tell)

    @property
    def vitals(self) -> wire.Vitals:
        """The counters for the agent: the pipeline's progress, and what this coordinator holds."""
        end = self.pipeline_end
        return wire.Vitals(end.received, end.sent, len(self._table.tickets), self._kv_blocks)

    def run(self) -> None:
        while True:
            wait_s = _WATCH_S if self._pipeline and self._pipeline.is_waiting else _TICK_S
            try:
                item = self._inbox.get(timeout=wait_s)
            except queue.Empty:
                self._look_at_clock(wait_s)
                self._count()
                continue
            if item is None:
                break
            self._handle(item)
            self._send_steps()
            if time.monotonic() - self._looked_s > _TICK_S:
                self._look_at_clock(_TICK_S)
        self._table.end_all(
            ClusterUnavailable("the machine that coordinates the cluster was stopped. Try again shortly.")
        )
        self.pipeline_end.close()

    def _handle(self, item: Ticket | Cancelled | Frame | PipelineBroken | wire.Message) -> None:
        match item:
            case Frame(wire.Sampled() as sampled):
                try:
                    self._commit(sampled)
                except FrameInvalid as error:
                    self._fail(sampled.epoch, str(error))
            case Ticket():
                self._take(item)
            case Cancelled(request_id):
                self._table.cancel(request_id)
            case PipelineBroken(epoch, reason, peer_id, cause):
                self._fail(epoch, reason, peer_id, cause)
            case wire.AssignCoordinator():
                self._assign(item)
            case wire.Connect():
                self._connect(item)
            case wire.Dismiss(epoch) if self._order is None or self._order.epoch < epoch:
                self._leave_pipeline()
                self._order = self._last_scheduler = None
            case _:
                pass

    def _assign(self, order: wire.AssignCoordinator) -> None:
        self._leave_pipeline()
        try:
            self._open_model(order)
        except ClusterError as error:
            self._report(wire.Failed(order.epoch, "coordinator", str(error)))
            return
        self._order = order
        self.pipeline_end.expect(order.epoch, order.upstream, 0, order.terms)
        host, port = self.pipeline_end.host, self.pipeline_end.port
        self._report(wire.Ready(order.epoch, "coordinator", host, port, self.client_port, unconstrained=missing()))

    def _open_model(self, order: wire.AssignCoordinator) -> None:
        """Load the tokenizer of the assigned model. Raise ClusterError if the order is not feasible."""
        if order.kv_blocks * BLOCK_TOKENS < order.context_tokens:
            raise ClusterError(f"{order.kv_blocks} KV blocks cannot hold one context")
        self.deployment = order.deployment
        if self._codec is None or self._codec_source != order.source:
            self._codec = TextCodec(Path(order.source))
            self._codec_source = order.source
        self._context_tokens = order.context_tokens
        if self._order and self._order.manifest != order.manifest:
            self._table.end_all(StageLost("the cluster serves another model now"))
            self._last_scheduler = None

    def _connect(self, order: wire.Connect) -> None:
        assigned = self._order
        if assigned is None or assigned.epoch != order.epoch:
            return
        if order.after_error:
            self._table.blame(self._computing)
        self._computing = set()
        try:
            self.pipeline_end.connect(order.epoch, order.downstream, assigned.terms)
        except LinkError as error:
            self._report(wire.Failed(order.epoch, "coordinator", str(error), order.downstream.node_id))
            return
        everything = set(range(assigned.stages))
        scheduler, fresh = self._last_scheduler, set(order.fresh) | self._unfed_stages
        if scheduler is None or not _suits(scheduler, assigned):
            saved = SavedPrefixes(self._name_key)
            scheduler = Scheduler(order.epoch, assigned.stages, assigned.slots, assigned.kv_blocks, saved)
            fresh = everything
        vocabulary = read_card(assigned.manifest.config).vocabulary
        self._pipeline = Pipeline(assigned, vocabulary, scheduler, fresh & everything)
        self.pipeline_end.send(warm_up(order.epoch))

    def _close_pipeline(self, pipeline: Pipeline, held: list[bytes] | None) -> None:
        assert self._codec
        round_trip_ms = pipeline.close(held)
        epoch = pipeline.order.epoch
        log.info(
            "pipeline closed",
            epoch=epoch,
            round_trip_ms=round(round_trip_ms, 1),
            requests=len(self._table.tickets),
        )
        self._report(wire.PipelineClosed(epoch, round_trip_ms))
        self._table.serve(pipeline.scheduler, self._codec, pipeline.order.context_tokens, pipeline.vocabulary)

    def _fail(self, epoch: int, reason: str, peer_id: str = "", cause: wire.Cause = "error") -> None:
        """End the pipeline of this epoch. A report about an older pipeline no longer matters."""
        if self._order and self._order.epoch == epoch != self._broken_epoch:
            self._broken_epoch = epoch
            log.warning("pipeline broken", epoch=epoch, reason=reason, requests=len(self._table.tickets))
            # Report before the neighbours find their links to this process closed.
            self._report(wire.Failed(epoch, "coordinator", reason, peer_id, cause))
            self._leave_pipeline()

    def _leave_pipeline(self) -> None:
        """Leave the pipeline.

        Requests keep their tokens; a later pipeline with the same partition reuses what the stages hold of them.
        """
        self.pipeline_end.leave()
        pipeline, self._pipeline = self._pipeline, None
        if pipeline and pipeline.is_closed:
            self._last_scheduler, self._unfed_stages = pipeline.scheduler, pipeline.fresh
            if pipeline.has_crawled:
                # The remaining machines may stay as slow: learn the next pipeline's pace from scratch.
                pipeline.scheduler.costs = PipelineCosts(pipeline.order.stages)
            self._computing = pipeline.computing
            self._table.interrupt()

    def _take(self, ticket: Ticket) -> None:
        if self._codec is None:
            error: GenerationError = ClusterUnavailable("no model is assigned to this coordinator")
            ticket.tell(rejected(ticket.id, error))
        else:
            self._table.take(ticket)

    def _send_steps(self) -> None:
        while self._pipeline and (frame := self._pipeline.next_frame()):
            self.pipeline_end.send(*frame)
            self._counted = False

    def _commit(self, sampled: wire.Sampled) -> None:
        pipeline = self._pipeline
        if pipeline is None or sampled.epoch != pipeline.order.epoch:
            return
        if is_warm_up(sampled):
            self._close_pipeline(pipeline, sampled.held)
        else:
            self._table.hand_out(pipeline.commit(sampled))

    def _look_at_clock(self, planned_s: float) -> None:
        """Reject requests that have waited too long, and end a pipeline that is stuck."""
        now_s, pipeline = time.monotonic(), self._pipeline
        stalled = now_s - self._looked_s > max(planned_s, _TICK_S) + _STALL_S
        self._looked_s = now_s
        if pipeline:
            self._kv_blocks = pipeline.scheduler.kv_blocks - pipeline.scheduler.blocks_free
        self._table.look_at_clock()
        if pipeline and stalled:
            pipeline.forgive()
        elif pipeline and self._inbox.empty() and (late := pipeline.lateness()):
            self._fail(pipeline.order.epoch, late, cause="stuck")

    def _count(self) -> None:
        """After each busy period, check that everything held here and on every stage belongs to a request."""
        pipeline = self._pipeline
        if self._counted or pipeline is None or self._table.tickets:
            return
        pipeline.scheduler.check_integrity()
        if frame := pipeline.census_frame():
            self.pipeline_end.send(*frame)
            self._counted = True


def _suits(scheduler: Scheduler, order: wire.AssignCoordinator) -> bool:
    """Tell whether the new pipeline counts slots and blocks the same way."""
    was = scheduler.stages, scheduler.slots, scheduler.kv_blocks
    return was == (order.stages, order.slots, order.kv_blocks)
