"""One request across several coordinators: the answer so far, and the request to the next coordinator.

coordinator 1: Accepted  Token Token Token | lost
coordinator 2:                   Accepted    Token Token Done      its request holds the text of coordinator 1
caller:        Accepted  Token Token Token   Token Token Done
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster.engine.seeds import fresh_seed
from cluster.generation import Accepted, Done, GenerateRequest, GenerationEvent, Resume, TokenEvent

# A request that loses this many coordinators in a row without progress may be the cause.
LOSSES_MAX = 3


@dataclass(slots=True)
class _ResumedChoice:
    """The part of one choice that the caller has. `spent_ns` is the time of earlier coordinators' stages."""

    token_ids: list[int] = field(default_factory=list)
    characters: int = 0
    compute_ns: int = 0
    spent_ns: int = 0
    is_finished: bool = False


class ResumedRequest:
    """Sends the request to one coordinator after the other, and joins their answers into one stream."""

    def __init__(self, request: GenerateRequest) -> None:
        """Fix the seed before the first try, so that every coordinator draws the same tokens."""
        if not request.sampling.seed:
            request = replace(request, sampling=replace(request.sampling, seed=fresh_seed()))
        self._request = request
        self._choices = [_ResumedChoice(list(resume.token_ids), resume.characters) for resume in request.resume]
        self._choices = self._choices or [_ResumedChoice() for _ in range(request.n)]
        self._tries = 0
        self._is_begun = False
        self._is_accepted = False
        self._idle_losses = 0
        self._has_progressed = False

    @property
    def is_begun(self) -> bool:
        """Tell whether the caller has received a new part of the answer."""
        return self._is_begun

    def next_try(self) -> GenerateRequest:
        """Return the request for the next coordinator.

        Each try has a new id, because the coordinator may still hold an earlier try.
        """
        for choice in self._choices:
            choice.spent_ns = choice.compute_ns
        request = self._request
        if self._tries:
            request = replace(request, id=f"{request.id}#{self._tries}")
        self._tries += 1
        if not self.is_begun:
            return request
        resume = tuple(Resume(token_ids=list(c.token_ids), characters=c.characters) for c in self._choices)
        return replace(request, resume=resume, is_retry=any(choice.token_ids for choice in self._choices))

    def pass_on(self, event: GenerationEvent) -> GenerationEvent | None:
        """Return the event as the caller should see it, or None if the caller has seen it already."""
        match event:
            case Accepted():
                was_accepted, self._is_accepted = self._is_accepted, True
                return None if was_accepted else event
            case TokenEvent():
                return self._take(event)
            case Done():
                return replace(event, compute_ns=event.compute_ns + sum(c.spent_ns for c in self._choices))

    def _take(self, event: TokenEvent) -> TokenEvent | None:
        choice = self._choices[event.choice]
        if choice.is_finished:
            return None
        self._is_begun = True
        choice.token_ids += event.token_ids
        choice.characters += len(event.text)
        choice.compute_ns = choice.spent_ns + event.compute_ns
        choice.is_finished = event.finish is not None
        self._has_progressed = self._has_progressed or bool(event.token_ids)
        return replace(event, compute_ns=choice.compute_ns)

    def note_loss(self, *, counts: bool) -> bool:
        """Note that the coordinator will not answer. Return whether it had brought the caller any progress.

        `counts` is true if the coordinator was lost with the request, false if it did not accept the request.
        """
        had_progressed, self._has_progressed = self._has_progressed, False
        self._idle_losses = 0 if had_progressed else self._idle_losses + counts
        return had_progressed

    @property
    def is_hopeless(self) -> bool:
        return self._idle_losses >= LOSSES_MAX
