"""Requests as a coordinator stores them: their state while they wait or run, and the checks before they start."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cluster import wire
from cluster.engine.completion import Completion
from cluster.engine.sequence import Sequence
from cluster.errors import ContextLengthExceeded, GenerationError, RequestInvalid
from cluster.generation import GenerateRequest

REQUESTS_MAX = 512
CHOICES_MAX = 128
# If this many pipelines in a row break without progress of one request, that request may be the cause.
BREAKS_MAX = 3

Tell = Callable[[wire.Message], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """A prepared request in the coordinator. `tell` takes its answers on the coordinator's thread.

    `breaks` counts the pipelines that broke while they computed the request, since it last got beyond `reached`. A
    request that breaks every pipeline reaches the same point each time; any other request gets further. A request
    is `parked` while another suspect runs.
    """

    request: GenerateRequest
    prompt: list[int]
    tell: Tell
    is_thinking: bool = False
    grammar: str = ""
    waiting_since_s: float = field(default_factory=time.monotonic)
    breaks: int = 0
    reached: tuple[int, int] = (0, 0)
    is_parked: bool = False
    completions: list[Completion] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def is_started(self) -> bool:
        """Tell whether its caller may have seen a part of the answer."""
        return any(completion.sequence.output_tokens for completion in self.completions)

    @property
    def is_queued(self) -> bool:
        """Tell whether a pipeline has the request but has computed nothing of it yet."""
        computed = any(completion.sequence.computed for completion in self.completions)
        return bool(self.completions) and not computed and not self.is_started and not self.is_parked

    @property
    def is_finished(self) -> bool:
        return bool(self.completions) and all(completion.finished for completion in self.completions)

    @property
    def open_sequences(self) -> Iterator[Sequence]:
        """Return its sequences that are still to be computed."""
        return (completion.sequence for completion in self.completions if not completion.finished)

    def count_break(self) -> None:
        """Count that the pipeline broke while it computed this request."""
        sequences = [completion.sequence for completion in self.completions]
        reached = sum(s.output_tokens for s in sequences), sum(s.settled for s in sequences)
        self.breaks = 1 if reached > self.reached else self.breaks + 1
        self.reached = max(reached, self.reached)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The order to stop a request whose caller has cancelled it."""

    request_id: str


def places_for(request: GenerateRequest) -> int:
    """Return the number of requests at which this one is rejected.

    After the loss of a coordinator many retries arrive at once. They may exceed the usual limit, because their
    callers already have the beginning of the answer.
    """
    return 2 * REQUESTS_MAX if request.is_retry else REQUESTS_MAX


def check_lengths(request: GenerateRequest, prompt_tokens: int, context_tokens: int) -> None:
    """Raise RequestInvalid or ContextLengthExceeded, naming the field, for lengths in tokens that do not fit.

    An answer that a lost coordinator had begun continues, if necessary with fewer tokens than requested.
    """
    if not prompt_tokens:
        raise RequestInvalid("the prompt is empty", "prompt")
    max_tokens = None if request.is_retry else request.limits.max_tokens
    if prompt_tokens + (max_tokens or 1) > context_tokens:
        completion = f" and {max_tokens} for the completion" if max_tokens else ""
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_tokens} tokens. You asked for {prompt_tokens} "
            f"tokens in the prompt{completion}. Shorten the prompt or lower max_tokens.",
            "max_tokens" if prompt_tokens < context_tokens and max_tokens else "messages",
        )


def check_tokens(token_ids: list[int], vocabulary: int, field: str = "prompt") -> None:
    """Raise RequestInvalid for ids that the embedding has no row for, whatever the tokenizer says."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocabulary:
        wrong = next(token for token in token_ids if not 0 <= token < vocabulary)
        raise RequestInvalid(f"token {wrong} is outside the model's vocabulary of {vocabulary} tokens", field)


def rejected(request_id: str, error: GenerationError) -> wire.Rejected:
    """Return the message that ends a request without its answer."""
    return wire.Rejected(request_id, error.code, error.message, error.param)
