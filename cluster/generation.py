"""The requests to a model and its answers, token by token."""

from typing import Any, Literal

from msgspec import Struct

FinishReason = Literal["stop", "length"]


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings by which the last stage turns logits into one token.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` and a token's position alone
    decide its draw, so a replayed sequence draws the same tokens again. `logprobs` is the number of alternatives
    to report beside the chosen token's log-probability, or -1 for neither.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1

    @property
    def needs_history(self) -> bool:
        """Tell whether earlier tokens of the sequence change its logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def truncates(self) -> bool:
        """Tell whether only the likelier tokens can be drawn."""
        return bool(self.top_k or self.top_p < 1.0 or self.min_p > 0)


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that end a sequence. `max_tokens` None means up to the context's end."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class ChatPrompt(Struct, frozen=True, tag="chat", omit_defaults=True):
    """Messages and tools as in the OpenAI API; the model's own chat template renders them.

    `options` are further variables of the template, for example whether the model should think.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    options: dict[str, Any] = {}


class TextPrompt(Struct, frozen=True, tag="text"):
    """A prompt as plain text."""

    text: str


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    """A prompt as token ids."""

    token_ids: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class CallSchema(Struct, frozen=True):
    """A function that an answer may call. Its arguments follow `parameters`, a JSON schema."""

    name: str
    parameters: dict[str, Any]
    is_strict: bool = False


class Constraint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form that an answer must have: JSON of this schema, calls of these functions, or with both, either.

    If a schema is not strict, keywords that no grammar can express are left out.
    """

    schema: dict[str, Any] | None = None
    is_strict: bool = False
    calls: tuple[CallSchema, ...] = ()
    allows_parallel: bool = True


class Resume(Struct, frozen=True, kw_only=True):
    """The part of one choice that a caller has from a lost coordinator. Another coordinator continues after it."""

    token_ids: list[int]
    characters: int


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One request for `n` independent continuations of one prompt.

    `resume` is empty, or has an entry for each choice. Only requests with the same `cache_salt` share cached
    prefixes. Otherwise the time of an answer could reveal another caller's prompt. `speculate` lets the
    coordinator draft from the text if that pays; the answer is the same without. With `shows_markers` the text
    keeps the special tokens that begin thoughts, channels and tool calls, for a parser. Only the controller sets
    `is_retry`: a request that a lost coordinator had begun may exceed the request limit of the next one. A request
    that `yields` runs only while no other request needs the pipeline. Its prompt is computed in small pieces, so
    that new requests wait only briefly, and it spares the most recent cached prefixes.
    """

    id: str
    prompt: Prompt
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    n: int = 1
    resume: tuple[Resume, ...] = ()
    cache_salt: str = ""
    speculate: bool = True
    constraint: Constraint | None = None
    shows_markers: bool = False
    is_retry: bool = False
    yields: bool = False


class Alternative(Struct, frozen=True, array_like=True):
    """Another possible token, with its natural-log probability under the raw logits."""

    token_id: int
    logprob: float
    raw: bytes = b""


class SampledToken(Struct, frozen=True, array_like=True):
    """The last stage's result for one row. Log-probabilities come only on request; the coordinator fills in `raw`.

    `raw` is the token's text in UTF-8, possibly only a part of a character. With a `problem` there is no token: it
    says why the sequence cannot go on.
    """

    token_id: int
    logprob: float = 0.0
    top: tuple[Alternative, ...] = ()
    raw: bytes = b""
    problem: str = ""


class Accepted(Struct, frozen=True, tag="accepted", omit_defaults=True):
    """The prompt is encoded and the request is queued.

    `is_thinking` says that the answer begins within a thought.
    """

    prompt_tokens: int
    is_thinking: bool = False


class TokenEvent(Struct, frozen=True, tag="token", omit_defaults=True):
    """Text that became certain; `finish` closes the choice.

    `text` can be empty (half a character, text that may turn out to be a stop string) and can hold several tokens'
    text at once. `tokens` lists them with log-probabilities if these were requested, `token_ids` always: with them
    another coordinator can continue. `completion_tokens` and `compute_ns` are the choice's totals so far, for
    callers that leave early.
    """

    choice: int
    text: str
    completion_tokens: int
    compute_ns: int
    tokens: tuple[SampledToken, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None


class Done(Struct, frozen=True, tag="done"):
    """Every choice has finished. `compute_ns` is the stages' busy time for this request, in nanoseconds.

    Of the prompt's tokens, `cached_tokens` were already in the KV cache.
    """

    prompt_tokens: int
    completion_tokens: int
    compute_ns: int
    cached_tokens: int = 0


GenerationEvent = Accepted | TokenEvent | Done
