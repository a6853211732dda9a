"""Requests for generated text: chats and completions."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.dialects.openai.fields import STOPS_MAX, TOOLS_MAX, PositiveTokens, RequestFields, StopString, TokenId


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class ImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class ContentPart(Struct, frozen=True):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    cache_control: Any = None

    @property
    def is_by_reference(self) -> bool:
        """Whether it refers to a picture or other data outside of the request."""
        url = self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url
        return url is not None and not url.startswith("data:image/")


class Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None
    audio: Any = None
    cache_control: Any = None


class _Sampled(RequestFields, frozen=True, kw_only=True):
    stream_options: StreamOptions | None = None
    max_tokens: PositiveTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=STOPS_MAX)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    ignore_eos: bool | None = None
    service_tier: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage event."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Sampled, frozen=True, kw_only=True):
    """The fields of POST /v1/chat/completions that the gateway uses; the original bytes have the others."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: PositiveTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[dict[str, Any]], Meta(max_length=TOOLS_MAX)] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None

    @property
    def tokens_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int:
        """The number of alternatives per token in log-probabilities; -1 if log-probabilities are not requested."""
        return (self.top_logprobs or 0) if self.logprobs else -1


class CompletionRequest(_Sampled, frozen=True, kw_only=True):
    """The fields of POST /v1/completions that the gateway uses."""

    prompt: str | list[str | TokenId | list[TokenId]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def tokens_limit(self) -> int | None:
        return self.max_tokens

    @property
    def alternatives(self) -> int:
        return -1 if self.logprobs is None else self.logprobs


GenerationRequest = ChatRequest | CompletionRequest
