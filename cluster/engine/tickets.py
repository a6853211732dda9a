"""Requests as a coordinator stores them: their preparation, their checks, and their state while they wait or run."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster import wire
from cluster.embedding import EmbedRequest
from cluster.engine.completion import Completion
from cluster.engine.seeds import fresh_seed
from cluster.engine.sequence import Sequence
from cluster.errors import ContextLengthExceeded, GenerationError, RequestInvalid
from cluster.generation import ChatPrompt, GenerateRequest
from cluster.models.grammar_check import check_grammar
from cluster.models.text import TextCodec
from cluster.models.tool_calls.grammar import Thinking, write_grammar

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


async def prepare_ticket(request: GenerateRequest, codec: TextCodec, context_tokens: int, tell: Tell) -> Ticket:
    """Return the request with its prompt as tokens. Raise RequestInvalid and ContextLengthExceeded."""
    if not 1 <= request.n <= CHOICES_MAX:
        raise RequestInvalid(f"n must be between 1 and {CHOICES_MAX}", "n")
    if len(request.resume) not in (0, request.n):
        raise RequestInvalid(f"{len(request.resume)} choices to resume of {request.n}", "resume")
    if not request.sampling.seed:
        request = replace(request, sampling=replace(request.sampling, seed=fresh_seed()))
    if request.constraint and request.limits.ignore_eos:
        # A constrained answer has an end, and nothing could follow it.
        request = replace(request, limits=replace(request.limits, ignore_eos=False))
    # The tokenizer takes tens of milliseconds for long prompts: keep it off the loop that serves all callers.
    token_ids, is_thinking, grammar = await asyncio.to_thread(_encode, codec, request, context_tokens)
    return Ticket(request, token_ids, tell, is_thinking, grammar)


def places_for(request: GenerateRequest | EmbedRequest) -> int:
    """Return the number of requests at which this one is rejected.

    After the loss of a coordinator many retries arrive at once. They may exceed the usual limit, because their
    callers already have the beginning of the answer.
    """
    return 2 * REQUESTS_MAX if isinstance(request, GenerateRequest) and request.is_retry else REQUESTS_MAX


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


def _encode(codec: TextCodec, request: GenerateRequest, tokens_max: int) -> tuple[list[int], bool, str]:
    """Turn the prompt into tokens and the constraint into a grammar, which is empty without one.

    The second value says whether the prompt ends within a thought. This takes milliseconds, longer for long prompts
    and large schemas. Raise RequestInvalid, naming the field, and ContextLengthExceeded.
    """
    if not isinstance(request.prompt, ChatPrompt):
        return codec.encode(request.prompt, tokens_max), False, ""
    rendered = codec.render(request.prompt)
    thought = codec.format.thought
    is_thinking = thought is not None and rendered.rstrip().endswith(thought[0])
    grammar = _grammar(codec, request, rendered, is_thinking=is_thinking)
    return codec.encode_text(rendered, tokens_max), is_thinking, grammar


def _grammar(codec: TextCodec, request: GenerateRequest, rendered: str, *, is_thinking: bool) -> str:
    if request.constraint is None:
        return ""
    thinking: Thinking = "begun" if is_thinking else "perhaps"
    thought = codec.format.thought
    # An empty thought in the prompt says that the model must not think.
    if thought and rendered.rstrip().endswith(thought[1]):
        thinking = "never"
    grammar = write_grammar(request.constraint, codec.format, codec.special_ids(), thinking)
    check_grammar(grammar)
    return grammar.lark
