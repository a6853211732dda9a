"""Fields common to all requests, and the bounds of field values."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.settings.base import LaneName, Privacy

# Far beyond any model; a larger number is a mistake or an attack.
TOKENS_MAX = 10_000_000
INPUTS_MAX = 2048
STOPS_MAX = 16
BIASES_MAX = 1024
TOOLS_MAX = 1024
# Limits on all resumed choices of an answer together: tokens, and their size as JSON.
HAD_TOKENS_MAX = 131_072
HAD_BYTES_MAX = 2**21

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PositiveTokens = Annotated[int, Meta(ge=1, le=TOKENS_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class Had(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part of one choice that a caller already has of a broken answer: tokens and characters.

    `text_offset` is the start of the next token in a completion's log-probabilities.
    """

    token_ids: Annotated[list[TokenId], Meta(max_length=HAD_TOKENS_MAX)]
    characters: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    text_offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class Extras(Struct, frozen=True, forbid_unknown_fields=True):
    """The optional `millrace` object of a request.

    `continue_on_failure` lets another backend continue a broken answer from its text, although the first one might
    have continued differently; never with tools or a schema. `deadline_s` is how long the caller waits for the
    first token, or for a whole answer.

    Gateways use the other fields among themselves. `resumable` asks a stream of the cluster lane to state its
    tokens beside its chunks. `resume` has, for each choice, the part that the caller already received; the answer
    continues after it. `weights` are those that the caller expects; other weights neither state tokens nor
    continue.
    """

    lane: LaneName | None = None
    privacy: Privacy | None = None
    continue_on_failure: bool = False
    deadline_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    cache: bool | None = None
    resumable: bool = False
    resume: Annotated[list[Had], Meta(min_length=1, max_length=128)] | None = None
    weights: Annotated[str, Meta(max_length=200)] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if `resume` has more than HAD_TOKENS_MAX tokens."""
        if self.had_tokens > HAD_TOKENS_MAX:
            raise ValueError(f"resume has {self.had_tokens} tokens in all; {HAD_TOKENS_MAX} are allowed")

    @property
    def had_tokens(self) -> int:
        """Number of tokens in all choices to be resumed."""
        return sum(len(had.token_ids) for had in self.resume or ())


class MaxPrice(Struct, frozen=True):
    """USD per million tokens, as a number or a decimal string."""

    prompt: str | float | int | None = None
    completion: str | float | int | None = None


class ProviderPreferences(Struct, frozen=True):
    """The `provider` object as OpenRouter names it. Names are backends' or providers' names, or lanes'."""

    order: list[str] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    sort: Literal["price", "throughput", "latency"] | None = None
    max_price: MaxPrice | None = None
    quantizations: list[str] | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None


class RequestFields(Struct, frozen=True, kw_only=True):
    """The fields that routing and the ledger read, for requests of every kind."""

    model: ModelName
    stream: bool | None = None
    user: str | None = None
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)
