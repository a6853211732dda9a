"""The table of every request that a coordinator holds, from its ticket to its last event. Pipelines come and go.

taken --a pipeline serves--> begun: its sequences are in the scheduler --every choice ends--> gone
  |                        |   ^
  |                        +---+  its pipeline breaks: the next pipeline continues it from its tokens
  +--------- no pipeline serves it for too long, or it breaks every pipeline: rejected
"""

import time
from collections.abc import Iterable

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.engine.completion import Completion
from cluster.engine.scheduler import Scheduler
from cluster.engine.seeds import choice_seed
from cluster.engine.sequence import Sequence
from cluster.engine.tickets import BREAKS_MAX, Ticket, check_lengths, check_tokens, places_for, rejected
from cluster.errors import ClusterBusy, ClusterUnavailable, GenerationError, RequestInvalid, StageLost
from cluster.generation import Accepted, Done, GenerationEvent, SampledToken
from cluster.models.text import Detokenizer, TextCodec

log = structlog.get_logger(__name__)

# The time that a request waits for a pipeline: before it has begun, and after.
BACKLOG_PATIENCE_S = 60.0
PIPELINE_PATIENCE_S = 120.0
QUEUE_PATIENCE_S = 240.0
# The interval of signs of life to callers, whatever their requests wait for. Callers give up on a silent
# coordinator after client.SILENCE_TIMEOUT_S.
KEEP_ALIVE_S = 15.0
_PROBLEM_CHARACTERS_MAX = 500


class RequestTable:
    """The table of requests. Only the coordinator's thread uses it.

    `scheduler` belongs to the pipeline that serves, or that served last.
    """

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self._owners: dict[Sequence, tuple[Ticket, Completion]] = {}
        self._scheduler: Scheduler | None = None
        self._serving = False
        self._limits: tuple[TextCodec, int, int] | None = None
        self._last_sign_s = time.monotonic()

    def take(self, ticket: Ticket) -> None:
        """Take a new request, and begin it at once if a pipeline serves.

        A rejection is not raised but sent to the ticket's own caller: ClusterBusy if no place is free,
        RequestInvalid if the id is in use.
        """
        try:
            if len(self.tickets) >= places_for(ticket.request):
                raise ClusterBusy(
                    f"{len(self.tickets)} requests are already waiting or running. Try again shortly."
                )
            if ticket.id in self.tickets:
                raise RequestInvalid("a request with this id is already running", "id")
        except GenerationError as error:
            ticket.tell(rejected(ticket.id, error))
            return
        self.tickets[ticket.id] = ticket
        if self._serving:
            self._begin(ticket)

    def cancel(self, request_id: str) -> None:
        """Drop a request that its caller has cancelled."""
        if ticket := self.tickets.pop(request_id, None):
            self._drop_sequences(ticket)
            log.info("request cancelled", request_id=request_id)
            self._try_next()

    def serve(self, scheduler: Scheduler, codec: TextCodec, context_tokens: int, vocabulary: int) -> None:
        """Start serving on a pipeline: begun requests go on first, then waiting ones begin.

        A scheduler that has served here before still has its sequences.
        """
        is_kept = scheduler is self._scheduler
        for ticket in list(self.tickets.values()):
            self._move(ticket, context_tokens)
        self._scheduler = scheduler
        self._limits = codec, context_tokens, vocabulary
        for ticket in sorted(self.tickets.values(), key=lambda ticket: not ticket.is_started):
            if not ticket.completions:
                self._begin(ticket)
            elif not is_kept and not ticket.is_parked:
                for sequence in ticket.open_sequences:
                    scheduler.add(sequence)
        self._serving = True
        self._try_next()

    def interrupt(self) -> None:
        """Note that the pipeline is gone: every request waits for the next one."""
        self._serving = False
        for ticket in self.tickets.values():
            ticket.waiting_since_s = time.monotonic()

    def blame(self, computing: set[Sequence]) -> None:
        """Count a break for the requests in these sequences.

        The pipeline broke by itself while it computed them: one of these requests may be the cause.
        """
        for ticket in list(self.tickets.values()):
            if not computing.isdisjoint(ticket.open_sequences):
                ticket.count_break()
                if ticket.breaks >= BREAKS_MAX:
                    lost = f"{ticket.breaks} pipelines in a row broke while computing this request"
                    self._reject(ticket, StageLost(lost))
        for suspect in self._suspects()[1:]:
            self._park(suspect)

    def hand_out(self, fresh: Iterable[tuple[Sequence, SampledToken]]) -> None:
        """Pass committed tokens to their completions, and send callers the text that is certain."""
        assert self._scheduler
        touched: dict[str, list[GenerationEvent]] = {}
        cleared = False
        for sequence, token in fresh:
            ticket, completion = self._owners[sequence]
            if token.problem:
                touched.pop(ticket.id, None)
                self._reject(ticket, _unkept(ticket, token.problem))
                continue
            cleared = cleared or ticket.breaks > 0
            ticket.breaks = 0
            event = completion.accept(token)
            if completion.finished:
                self._scheduler.finish(sequence)
                del self._owners[sequence]
            if event:
                touched.setdefault(ticket.id, []).append(event)
        for request_id, events in touched.items():
            self._emit(self.tickets[request_id], events)
        if cleared:
            self._try_next()

    def look_at_clock(self) -> None:
        """Reject requests that have waited too long, and send all callers a sign of life."""
        for ticket in list(self.tickets.values()):
            waited_s = time.monotonic() - ticket.waiting_since_s
            if error := self._overdue(ticket, waited_s):
                self._reject(ticket, error)
        if time.monotonic() - self._last_sign_s > KEEP_ALIVE_S:
            self._last_sign_s = time.monotonic()
            for ticket in self.tickets.values():
                ticket.tell(wire.Events(ticket.id, []))

    def end_all(self, error: GenerationError) -> None:
        """Reject every request. Callers may ask another coordinator to go on."""
        for ticket in list(self.tickets.values()):
            self._reject(ticket, error)

    def _move(self, ticket: Ticket, context_tokens: int) -> None:
        """Move a request to a new pipeline. End it if that pipeline has no room for a context of its length."""
        if not ticket.completions:
            return
        if not ticket.is_started:
            try:
                check_lengths(ticket.request, len(ticket.prompt), context_tokens)
            except GenerationError as error:
                self._reject(ticket, error)
                return
        events: list[GenerationEvent] = []
        for completion in ticket.completions:
            if event := completion.move(context_tokens):
                events.append(event)
                self._drop_sequence(completion)
        if events:
            self._emit(ticket, events)

    def _overdue(self, ticket: Ticket, waited_s: float) -> GenerationError | None:
        if self._serving:
            if ticket.is_queued and waited_s > QUEUE_PATIENCE_S:
                return ClusterBusy(f"all slots were taken for {QUEUE_PATIENCE_S:.0f} s. Try again shortly.")
        elif ticket.is_started:
            if waited_s > PIPELINE_PATIENCE_S:
                return StageLost(
                    f"a machine was lost, and the cluster was not ready for {PIPELINE_PATIENCE_S:.0f} s"
                )
        elif waited_s > BACKLOG_PATIENCE_S:
            return ClusterUnavailable(f"the cluster has not been ready for {BACKLOG_PATIENCE_S:.0f} s")
        return None

    def _begin(self, ticket: Ticket) -> None:
        assert self._limits
        assert self._scheduler
        request, (_, context_tokens, vocabulary) = ticket.request, self._limits
        try:
            check_lengths(request, len(ticket.prompt), context_tokens)
            check_tokens(ticket.prompt, vocabulary)
            for known in request.resume:
                check_tokens(known.token_ids, vocabulary, "resume")
        except GenerationError as error:
            self._reject(ticket, error)
            return
        ticket.waiting_since_s = time.monotonic()
        events: list[GenerationEvent] = [Accepted(len(ticket.prompt), ticket.is_thinking)]
        for choice in range(request.n):
            completion = self._complete(ticket, choice)
            ticket.completions.append(completion)
            received = request.resume[choice] if request.resume else None
            if received and (event := completion.resume(received)):
                events.append(event)
            if not completion.finished:
                self._owners[completion.sequence] = (ticket, completion)
                self._scheduler.add(completion.sequence)
        self._emit(ticket, events)

    def _complete(self, ticket: Ticket, choice: int) -> Completion:
        assert self._limits
        request, (codec, context_tokens, _) = ticket.request, self._limits
        most = context_tokens
        if request.limits.max_tokens is not None:
            most = min(most, len(ticket.prompt) + request.limits.max_tokens)
        sampling = replace(request.sampling, seed=choice_seed(request.sampling.seed, choice))
        sequence = Sequence(
            list(ticket.prompt),
            len(ticket.prompt),
            sampling,
            tokens_max=most if request.speculate else 0,
            salt=request.cache_salt,
            grammar=ticket.grammar,
            yields=request.yields,
        )
        detokenizer = Detokenizer(codec, sequence.tokens, shows_markers=request.shows_markers)
        return Completion.begin(choice, sequence, request.limits, context_tokens, detokenizer)

    def _emit(self, ticket: Ticket, events: list[GenerationEvent]) -> None:
        if ticket.is_finished:
            completion_tokens = sum(completion.tokens for completion in ticket.completions)
            compute_ns = sum(completion.sequence.spent_ns for completion in ticket.completions)
            cached_tokens = min(len(ticket.prompt), ticket.completions[0].sequence.reused_tokens)
            events.append(Done(len(ticket.prompt), completion_tokens, compute_ns, cached_tokens))
            del self.tickets[ticket.id]
        ticket.tell(wire.Events(ticket.id, events))

    def _reject(self, ticket: Ticket, error: GenerationError) -> None:
        self.tickets.pop(ticket.id, None)
        self._drop_sequences(ticket)
        ticket.tell(rejected(ticket.id, error))
        self._try_next()

    def _drop_sequences(self, ticket: Ticket) -> None:
        for completion in ticket.completions:
            self._drop_sequence(completion)

    def _drop_sequence(self, completion: Completion) -> None:
        if self._owners.pop(completion.sequence, None) and self._scheduler:
            self._scheduler.finish(completion.sequence)

    def _park(self, ticket: Ticket) -> None:
        assert self._scheduler
        if not ticket.is_parked:
            ticket.is_parked = True
            for sequence in ticket.open_sequences:
                self._scheduler.finish(sequence)
                sequence.finished = False

    def _suspects(self) -> list[Ticket]:
        """Return the requests that were computed when a pipeline broke and have made no progress since.

        The list stays empty until one of them has been there twice. Then requests run one at a time, to find the
        one that breaks pipelines. Run together, the others would be blamed, too.
        """
        tickets = self.tickets.values()
        is_serious = any(ticket.breaks >= BREAKS_MAX - 1 for ticket in tickets)
        return [ticket for ticket in tickets if ticket.breaks] if is_serious else []

    def _try_next(self) -> None:
        """Let one suspect run in the pipeline, and resume requests that are no longer suspects."""
        if not self._serving:
            return
        suspects = self._suspects()
        tried = suspects[:1] if all(ticket.is_parked for ticket in suspects) else []
        for ticket in self.tickets.values():
            if ticket.is_parked and (ticket in tried or ticket not in suspects):
                self._unpark(ticket)

    def _unpark(self, ticket: Ticket) -> None:
        assert self._scheduler
        ticket.is_parked = False
        for sequence in ticket.open_sequences:
            self._scheduler.add(sequence)


def _unkept(ticket: Ticket, problem: str) -> RequestInvalid:
    """Return the error for a request whose constraint the last stage could not follow."""
    constraint = ticket.request.constraint
    field = "tools" if constraint and constraint.schema is None else "response_format"
    return RequestInvalid(f"{field}: {problem[:_PROBLEM_CHARACTERS_MAX]}", field)
