"""The pipeline's loop: schedule, send, commit tokens, tell callers; fail what a lost stage was running."""

import queue
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.completion import Completion
from cluster.errors import (
    ClusterBusy,
    ClusterError,
    ClusterUnavailable,
    FrameInvalid,
    GenerationError,
    LinkError,
    RequestInvalid,
    StageLost,
)
from cluster.generation import Accepted, Done, GenerationEvent, SampledToken
from cluster.identity import Identity
from cluster.model_card import read_card
from cluster.plan import BLOCK_TOKENS
from cluster.ring import RingBroken, RingEnd
from cluster.scheduler import Scheduler, Sequence
from cluster.text import TextCodec
from cluster.tickets import (
    REQUESTS_MAX,
    Cancelled,
    Tell,
    Ticket,
    check_lengths,
    check_tokens,
    choice_seed,
    rejected,
)
from cluster.transport import Frame

log = structlog.get_logger(__name__)

BACKLOG_PATIENCE_S = 60.0
# Callers give up on a head that has been silent for longer (client.SILENCE_TIMEOUT_S).
QUEUE_PATIENCE_S = 240.0
# A prefill chunk on slow machines takes a while; a stage that computes for longer hangs.
BATCH_TIMEOUT_S = 120.0
# What a request was waiting for when the ring broke may be what broke it: it gets one more try, not more.
BREAKS_MAX = 1

_TICK_S = 1.0
_WARM_UP = 0


@dataclass(slots=True)
class _Ring:
    """The ring of one epoch. It serves once a first frame has come all the way round."""

    order: wire.AssignHead
    scheduler: Scheduler
    vocabulary: int
    connected_s: float = 0.0
    is_closed: bool = False
    # When each batch under way was sent, oldest first.
    sent_s: dict[int, float] = field(default_factory=dict)


class Head:
    """An actor: one inbox, one thread that decides and commits. Callers and links only put.

    A ticket is in the backlog while no ring serves, otherwise in the scheduler.
    """

    def __init__(self, identity: Identity, host: str, report: Tell) -> None:
        self._report = report
        self._inbox: queue.SimpleQueue[Ticket | Cancelled | Frame | RingBroken | wire.Message | None] = (
            queue.SimpleQueue()
        )
        self.ring_end = RingEnd(identity, host, wire.Sampled, self._inbox.put)
        self.client_port = 0
        self._ring: _Ring | None = None
        self._codec: TextCodec | None = None
        self._codec_source = ""
        self._context_tokens = 0
        self._tickets: dict[str, Ticket] = {}
        self._backlog: deque[Ticket] = deque()
        self._owners: dict[Sequence, tuple[Ticket, Completion]] = {}
        self._draining = False
        self._looked_s = 0.0

    def deliver(self, item: Ticket | Cancelled | wire.Message) -> None:
        """Called from any thread."""
        self._inbox.put(item)

    def stop(self) -> None:
        self._inbox.put(None)

    @property
    def codec(self) -> TextCodec | None:
        """The tokenizer of the assigned model, for whoever prepares tickets."""
        return self._codec

    @property
    def context_tokens(self) -> int:
        """The longest prompt of the assigned model with what it answers; 0 before there is one."""
        return self._context_tokens

    def run(self) -> None:
        while True:
            self._look_at_clock()
            try:
                item = self._inbox.get(timeout=_TICK_S)
            except queue.Empty:
                if self._ring and not self._tickets:
                    self._ring.scheduler.check_integrity()
                continue
            if item is None:
                break
            self._handle(item)
            self._send_steps()
        self._end_all()
        self.ring_end.close()

    def _handle(self, item: Ticket | Cancelled | Frame | RingBroken | wire.Message) -> None:
        match item:
            case Frame(wire.Sampled() as sampled):
                try:
                    self._commit(sampled)
                except FrameInvalid as error:
                    self._fail(sampled.epoch, str(error))
            case Ticket():
                self._take(item)
            case Cancelled(request_id):
                self._cancel(request_id)
            case RingBroken(epoch, reason, peer_id) if self._ring and self._ring.order.epoch == epoch:
                self._fail(epoch, reason, peer_id)
            case wire.AssignHead():
                self._assign(item)
            case wire.Connect():
                self._connect(item)
            case wire.Dismiss(epoch) if self._ring is None or self._ring.order.epoch < epoch:
                self._break("the cluster is being planned anew")
            case wire.Drain():
                self._drain()
            case _:
                pass

    def _assign(self, order: wire.AssignHead) -> None:
        self._break("the cluster is being planned anew")
        try:
            if self._codec is None or self._codec_source != order.source:
                self._codec = TextCodec(Path(order.source))
                self._codec_source = order.source
            vocabulary = read_card(order.manifest.config).vocabulary
            if order.kv_blocks * BLOCK_TOKENS < order.context_tokens:
                raise ClusterError(f"{order.kv_blocks} KV blocks hold less than one context")
        except ClusterError as error:
            self._report(wire.Failed(order.epoch, "head", str(error)))
            return
        scheduler = Scheduler(order.epoch, order.stages, order.slots, order.kv_blocks)
        self._ring = _Ring(order, scheduler, vocabulary)
        self._context_tokens = order.context_tokens
        self.ring_end.expect(order.epoch, order.upstream, 0)
        self._report(wire.Ready(order.epoch, "head", self.ring_end.host, self.ring_end.port, self.client_port))

    def _connect(self, order: wire.Connect) -> None:
        if self._ring is None or self._ring.order.epoch != order.epoch:
            return
        try:
            self.ring_end.connect(order.epoch, order.downstream)
        except LinkError as error:
            self._report(wire.Failed(order.epoch, "head", str(error), order.downstream.node_id))
            return
        self._ring.connected_s = time.monotonic()
        self.ring_end.send(_empty_step(order.epoch))

    def _close_ring(self, ring: _Ring) -> None:
        """The first frame has come round: from now on steps may follow."""
        ring.is_closed = True
        round_trip_ms = 1000 * (time.monotonic() - ring.connected_s)
        log.info("ring closed", epoch=ring.order.epoch, round_trip_ms=round(round_trip_ms, 1))
        self._report(wire.RingClosed(ring.order.epoch, round_trip_ms))
        while self._backlog:
            self._schedule(self._backlog.popleft(), ring)

    def _fail(self, epoch: int, reason: str, peer_id: str = "") -> None:
        """The ring of this epoch cannot go on; an older one's troubles are over."""
        if self._ring and self._ring.order.epoch == epoch:
            log.warning("ring broken", epoch=epoch, reason=reason)
            self._break(reason, count=True)
            self._report(wire.Failed(epoch, "head", reason, peer_id))

    def _break(self, reason: str, *, count: bool = False) -> None:
        """End this epoch: what has begun to answer fails, what has not waits for the next ring."""
        self.ring_end.leave()
        self._ring = None
        self._owners.clear()
        if self._draining:
            self._draining = False
            for ticket in self._backlog:  # It was the drain that they waited for.
                ticket.waiting_since_s = time.monotonic()
        for ticket in list(self._tickets.values()):
            if not ticket.completions:
                continue  # It has waited in the backlog all along.
            ticket.breaks += int(count and not ticket.is_queued)
            if ticket.is_started or ticket.breaks > BREAKS_MAX:
                self._reject(ticket, StageLost(f"a machine of the cluster was lost while answering: {reason}"))
            else:
                ticket.completions = []
                ticket.waiting_since_s = time.monotonic()
                self._backlog.append(ticket)

    def _take(self, ticket: Ticket) -> None:
        try:
            if self._codec is None:
                raise ClusterUnavailable("no model is assigned to this head")
            if len(self._tickets) >= REQUESTS_MAX:
                raise ClusterBusy(f"{len(self._tickets)} requests are waiting or running here; try again shortly")
            if ticket.id in self._tickets:
                raise RequestInvalid("a request with this id is running", "id")
        except GenerationError as error:
            ticket.tell(rejected(ticket.id, error))
            return
        self._tickets[ticket.id] = ticket
        if self._ring and self._ring.is_closed and not self._draining:
            self._schedule(ticket, self._ring)
        else:
            self._backlog.append(ticket)

    def _schedule(self, ticket: Ticket, ring: _Ring) -> None:
        assert self._codec is not None
        request, context_tokens = ticket.request, ring.order.context_tokens
        try:
            check_lengths(request, len(ticket.prompt), context_tokens)
            check_tokens(ticket.prompt, ring.vocabulary)
        except GenerationError as error:
            self._reject(ticket, error)
            return
        ticket.tell(wire.Events(ticket.id, [Accepted(len(ticket.prompt))]))
        for choice in range(request.n):
            sampling = replace(request.sampling, seed=choice_seed(request.sampling.seed, choice))
            sequence = Sequence(list(ticket.prompt), len(ticket.prompt), sampling)
            completion = Completion.begin(choice, sequence, request.limits, context_tokens, self._codec)
            ticket.completions.append(completion)
            self._owners[sequence] = (ticket, completion)
            ring.scheduler.add(sequence)

    def _cancel(self, request_id: str) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        self._drop_sequences(ticket)
        if not ticket.completions:
            self._backlog.remove(ticket)
        log.info("request cancelled", request_id=request_id)
        self._finish_drain()

    def _send_steps(self) -> None:
        ring = self._ring
        while ring and ring.is_closed and (work := ring.scheduler.next_step()):
            step, token_ids = work
            ring.sent_s[step.batch] = time.monotonic()
            self.ring_end.send(step, memoryview(array("i", token_ids)).cast("B") if token_ids else b"")

    def _commit(self, sampled: wire.Sampled) -> None:
        ring = self._ring
        if ring is None or sampled.epoch != ring.order.epoch:
            return
        if sampled.batch == _WARM_UP:
            self._close_ring(ring)
            return
        named = [token_id for token in sampled.tokens for token_id in (token.token_id, *_others(token))]
        if any(not 0 <= token_id < ring.vocabulary for token_id in named):
            raise FrameInvalid("the last stage drew a token outside of the vocabulary")
        ring.sent_s.pop(sampled.batch, None)
        touched: dict[str, list[GenerationEvent]] = {}
        for sequence, token in ring.scheduler.commit(sampled.batch, sampled.tokens, sum(sampled.spent_ns)):
            ticket, completion = self._owners[sequence]
            event = completion.accept(token)
            if completion.finished:
                ring.scheduler.finish(sequence)
                del self._owners[sequence]
            if event:
                touched.setdefault(ticket.id, []).append(event)
        for request_id, events in touched.items():
            self._emit(self._tickets[request_id], events)

    def _emit(self, ticket: Ticket, events: list[GenerationEvent]) -> None:
        if ticket.is_finished:
            completion_tokens = sum(completion.tokens for completion in ticket.completions)
            compute_ns = sum(completion.sequence.spent_ns for completion in ticket.completions)
            events.append(Done(len(ticket.prompt), completion_tokens, compute_ns))
            del self._tickets[ticket.id]
        ticket.tell(wire.Events(ticket.id, events))
        self._finish_drain()

    def _reject(self, ticket: Ticket, error: GenerationError) -> None:
        self._tickets.pop(ticket.id, None)
        self._drop_sequences(ticket)
        ticket.tell(rejected(ticket.id, error))

    def _drop_sequences(self, ticket: Ticket) -> None:
        for completion in ticket.completions:
            if self._owners.pop(completion.sequence, None) and self._ring:
                self._ring.scheduler.finish(completion.sequence)

    def _look_at_clock(self) -> None:
        """Once a tick: whoever has waited too long hears so, and so does a ring that is stuck."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _TICK_S:
            return
        self._looked_s = now_s
        while self._backlog and not self._draining and self._has_waited(self._backlog[0], BACKLOG_PATIENCE_S):
            error = ClusterUnavailable(f"the cluster has not been ready for {BACKLOG_PATIENCE_S:.0f} s")
            self._reject(self._backlog.popleft(), error)
        for ticket in list(self._tickets.values()):
            if ticket.is_queued and self._has_waited(ticket, QUEUE_PATIENCE_S):
                busy = f"all places were taken for {QUEUE_PATIENCE_S:.0f} s; try again shortly"
                self._reject(ticket, ClusterBusy(busy))
        ring = self._ring
        if ring and ring.sent_s and now_s - next(iter(ring.sent_s.values())) > BATCH_TIMEOUT_S:
            self._fail(ring.order.epoch, f"the ring has not answered a step for {BATCH_TIMEOUT_S:.0f} s")

    def _has_waited(self, ticket: Ticket, patience_s: float) -> bool:
        return time.monotonic() - ticket.waiting_since_s > patience_s

    def _end_all(self) -> None:
        """This head ends: what has begun is lost, what has not may be asked of the next head."""
        for ticket in list(self._tickets.values()):
            kind = StageLost if ticket.is_started else ClusterUnavailable
            self._reject(ticket, kind("the machine that coordinates the cluster was lost or stopped"))
        self._backlog.clear()

    def _drain(self) -> None:
        """Finish what has begun; what has not waits for the next ring."""
        self._draining = True
        for ticket in self._tickets.values():
            if ticket.is_queued:
                self._drop_sequences(ticket)
                ticket.completions = []
                self._backlog.append(ticket)
        self._finish_drain()

    def _finish_drain(self) -> None:
        if self._draining and not any(ticket.completions for ticket in self._tickets.values()):
            self._report(wire.Drained())


def _others(token: SampledToken) -> Iterator[int]:
    return (other.token_id for other in token.top)


def _empty_step(epoch: int) -> wire.Step:
    return wire.Step(
        epoch=epoch, batch=_WARM_UP, slots=[], starts=[], counts=[], wanted=[], opened=[], closed=[], spent_ns=[]
    )
