"""The request bodies the worker accepts: the fields that reach litellm are exactly the ones listed here.

The list is closed on purpose. litellm's entry points take their own controls (`api_base`, `api_key`,
`mock_response`, `fallbacks` ...) as further keyword arguments: a body passed on unchecked could send a provider's
key anywhere.
"""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.lanes.cloud.worker.schemas import SchemaTooLarge, expanded_bytes
from runtime.workers.errors import Refusal

Json = dict[str, Any]
Count = Annotated[int, Meta(ge=0)]
Stop = str | list[str]


class _Sampling(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat completions and completions share."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: Json | None = None
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Count | None = None
    stop: Stop | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def arguments(self) -> Json:
        """The arguments for litellm other than the provider's model: the fields that were set."""
        fields = msgspec.structs.asdict(self)
        del fields["model"]
        fields["stream"] = bool(self.stream)
        return {name: value for name, value in fields.items() if value is not None}

    def wants_usage(self) -> bool:
        """A whole answer always carries usage; a stream only when asked to."""
        return not self.stream or bool((self.stream_options or {}).get("include_usage"))


class ChatRequest(_Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Json], Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: Count | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Json] | None = None
    function_call: str | Json | None = None
    response_format: Json | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    modalities: list[str] | None = None
    audio: Json | None = None
    prediction: Json | None = None
    reasoning_effort: str | None = None
    thinking: Json | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    web_search_options: Json | None = None


class CompletionRequest(_Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[Any], Meta(min_length=1, max_length=1_000_000)]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Count | None = None
    logprobs: Count | None = None


Request = ChatRequest | CompletionRequest

_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completion": msgspec.json.Decoder(CompletionRequest),
}


def parse(body: bytes, kind: Literal["chat", "completion"]) -> Request:
    """Return the request in `body`. Raises a Refusal that names the field at fault."""
    try:
        request: Request = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "invalid_json", f"The body is not valid JSON: {error}") from None
    _check(request)
    return request


def _check(request: Request) -> None:
    """Check rules that the types above cannot express."""
    if isinstance(request, ChatRequest):
        for position, message in enumerate(request.messages):
            place = f"messages[{position}]"
            if not isinstance(message.get("role"), str):
                raise Refusal(400, "invalid_value", "Every message needs a role.", f"{place}.role")
            if not isinstance(message.get("content"), str | list | None):
                expected = "Content is a string, a list of parts or null."
                raise Refusal(400, "invalid_value", expected, f"{place}.content")
        _check_schemas(request)
    if request.stream and (request.n or 1) > 1:
        # litellm's stream wrapper, needed for most providers, reads the first answer only and would mix them.
        raise Refusal(400, "unsupported_parameter", "Cloud models stream one answer: n must be 1.", "n")


def _check_schemas(request: ChatRequest) -> None:
    for name in ("tools", "functions", "response_format"):
        try:
            expanded_bytes(getattr(request, name))
        except SchemaTooLarge:
            large = "The schemas are too large once their references are written out, or too deep."
            raise Refusal(400, "schema_too_large", large, name) from None


def _invalid_field(error: str) -> Refusal:
    unknown = re.search(r"unknown field `(.+?)`", error)
    if unknown:
        name = unknown.group(1)
        return Refusal(400, "unsupported_parameter", f"Unsupported parameter: {name}.", param=name)
    missing = re.search(r"missing required field `(.+?)`", error)
    place = re.search(r"at `\$\.?(.*?)`", error)
    param = missing.group(1) if missing else place.group(1) if place else None
    return Refusal(400, "invalid_value", f"Invalid request: {error}", param=param)
