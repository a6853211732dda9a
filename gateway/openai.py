"""The OpenAI API's shapes: requests checked as they are parsed, answers and stream events as bytes."""

import json
import math
import re
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from gateway.errors import RequestInvalid
from gateway.settings.base import LaneName, Privacy

Kind = Literal["chat", "completion", "embedding"]

KINDS: frozenset[Kind] = frozenset(get_args(Kind))
GENERATES: frozenset[Kind] = frozenset(("chat", "completion"))

# Far beyond any model; a larger number is a mistake or an attack.
TOKENS_MAX = 10_000_000
INPUTS_MAX = 2048
STOPS_MAX = 16
BIASES_MAX = 1024
_TOKEN_DIGITS = 10
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PositiveTokens = Annotated[int, Meta(ge=1, le=TOKENS_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class ImageUrl(Struct, frozen=True):
    url: str


class ContentPart(Struct, frozen=True):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    cache_control: Any = None

    @property
    def is_by_reference(self) -> bool:
        """Whether it names a picture, or something else, that does not travel in the request itself."""
        url = self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url
        return url is not None and not url.startswith("data:image/")


class Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    audio: Any = None
    cache_control: Any = None


class Extras(Struct, frozen=True, forbid_unknown_fields=True):
    """The optional `millrace` object of a request.

    `continue_on_failure` allows an answer that a foreign backend broke off to be taken up by another one from its
    text, which is not what the first would have said; never with tools or a schema. `deadline_s` is when the
    caller gives up waiting for the first token.
    """

    lane: LaneName | None = None
    privacy: Privacy | None = None
    continue_on_failure: bool = False
    deadline_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    cache: bool | None = None


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
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None


ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^\\x00-\\x1f\\x7f]+$")]


class _Common(Struct, frozen=True, kw_only=True):
    model: ModelName
    stream: bool | None = None
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
    user: str | None = None
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with a usage event."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Common, frozen=True, kw_only=True):
    """The fields of POST /v1/chat/completions that we act on; others travel on in the original bytes."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: PositiveTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None

    @property
    def tokens_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int:
        """Log-probabilities wanted per token, -1 for none at all."""
        return (self.top_logprobs or 0) if self.logprobs else -1


class CompletionRequest(_Common, frozen=True, kw_only=True):
    """The fields of POST /v1/completions that we act on."""

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


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """The fields of POST /v1/embeddings that we act on."""

    model: ModelName
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    user: str | None = None
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def tokens_limit(self) -> int:
        """Nothing is generated."""
        return 0

    @property
    def texts(self) -> list[str]:
        """The inputs, where they are texts."""
        return [self.input] if isinstance(self.input, str) else [one for one in self.input if isinstance(one, str)]

    @property
    def token_ids(self) -> list[list[int]]:
        """The inputs, where they are tokens; one list of tokens is one input."""
        if isinstance(self.input, str):
            return []
        single = [one for one in self.input if isinstance(one, int)]
        return [single] if single else [one for one in self.input if isinstance(one, list)]


GenerationRequest = ChatRequest | CompletionRequest
Request = GenerationRequest | EmbeddingRequest

_decoders: dict[Kind, msgspec.json.Decoder[Request]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completion": msgspec.json.Decoder(CompletionRequest),
    "embedding": msgspec.json.Decoder(EmbeddingRequest),
}


def read_request(kind: Kind, body: bytes) -> Request:
    """Parse and check a body. Raises RequestInvalid naming the field."""
    if not body:
        raise RequestInvalid("The request has no body; send a JSON object.", code="invalid_json")
    try:
        request = _decoders[kind].decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _PATH.search(text)
        missing = re.search(r"missing required field `(\w+)`", text)
        param = missing.group(1) if missing else at.group(1) if at else None
        said = _PATH.sub("", text)
        code = "missing_required_parameter" if missing else "invalid_value"
        raise RequestInvalid(f"{param}: {said}" if param else said, param=param or None, code=code) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if param := _find_non_finite(body):
            message = f"{param}: NaN and Infinity are no JSON numbers"
            raise RequestInvalid(message, param=param, code="invalid_json") from None
        raise RequestInvalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    _check_combinations(request)
    return request


def _find_non_finite(body: bytes) -> str | None:
    """The top-level field that holds NaN or Infinity, which Python's json writes and JSON does not have."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    fields = content.items() if isinstance(content, dict) else ()
    return next((name for name, value in fields if isinstance(value, float) and not math.isfinite(value)), None)


def _check_combinations(request: Request) -> None:
    if isinstance(request, EmbeddingRequest):
        _check_inputs(request)
        return
    if request.stream_options and not request.stream:
        raise RequestInvalid("stream_options: only allowed with stream: true", param="stream_options")
    if isinstance(request, ChatRequest):
        _check_chat(request)
    else:
        _check_kind(request.prompt, "prompt")
    _check_biases(request.logit_bias or {})


def _check_kind(parts: str | list[str | int | list[int]], field: str) -> None:
    if not parts:
        raise RequestInvalid(f"{field}: must not be empty", param=field, code="invalid_value")
    if len({type(part) for part in parts}) > 1:
        raise RequestInvalid(f"{field}: must be of one kind: text, token ids, or lists of them", param=field)


def _check_inputs(request: EmbeddingRequest) -> None:
    _check_kind(request.input, "input")
    inputs: list[str] | list[list[int]] = request.texts or request.token_ids
    if len(inputs) > INPUTS_MAX:
        text = f"input: {len(inputs)} inputs are more than {INPUTS_MAX}; send fewer at once"
        raise RequestInvalid(text, param="input", code="invalid_value")
    empty = next((at for at, one in enumerate(inputs) if not one), None)
    if empty is not None:
        raise RequestInvalid(f"input[{empty}]: must not be empty", param="input", code="invalid_value")


def _check_biases(biases: dict[str, float]) -> None:
    if len(biases) > BIASES_MAX:
        text = f"logit_bias: at most {BIASES_MAX} tokens can be biased"
        raise RequestInvalid(text, param="logit_bias", code="invalid_value")
    for token in biases:
        if not token.isascii() or not token.isdigit() or len(token) > _TOKEN_DIGITS:
            raise RequestInvalid(f"logit_bias: {token[:20]!r} is no token id", param="logit_bias")


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise RequestInvalid("top_logprobs: only allowed with logprobs: true", param="top_logprobs")
    if request.max_tokens and request.max_completion_tokens not in (None, request.max_tokens):
        text = "max_completion_tokens: differs from max_tokens; send one of them"
        raise RequestInvalid(text, param="max_completion_tokens")
    for at, message in enumerate(request.messages):
        _check_message(message, f"messages[{at}]")


def _check_message(message: Message, field: str) -> None:
    """Content that is not there would be read as empty, and answered all the same."""
    if message.content is None and message.role not in ("assistant", "function"):
        text = f"{field}.content: a {message.role} message needs content"
        raise RequestInvalid(text, param=f"{field}.content", code="missing_required_parameter")
    for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type == "text" and part.text is None:
            param = f"{field}.content[{at}].text"
            raise RequestInvalid(f"{param}: missing", param=param, code="missing_required_parameter")


def model_entry(name: str, lanes: list[str]) -> dict[str, Any]:
    """One element of GET /v1/models."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "millrace", "millrace": {"lanes": lanes}}
