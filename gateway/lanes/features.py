"""The features that a request needs beyond text in and text out, and the fields that request them."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Literal, get_args

from gateway.dialects.openai import ChatRequest, CompletionRequest, ContentPart, Message, Request, TaskRequest

Feature = Literal[
    "tools",
    "json",
    "vision",
    "audio",
    "suffix",
    "best_of",
    "logprobs",
    "echo_logprobs",
    "files",
    "remote_media",
    "hosted_tools",
    "web_search",
    "service_tier",
    "prompt_caching",
    "prediction",
]

ALL_FEATURES: frozenset[Feature] = frozenset(get_args(Feature))

# The features that GET /v1/models lists for a model, without those that only concern charging.
ABILITIES: tuple[Feature, ...] = ("tools", "json", "vision", "audio", "files")

# Providers charge for these in other units or rates than the price list's tokens, or for tokens that the request
# does not limit: a picture of unknown size at a URL, the pages that a search finds, a wrong prediction.
UNPRICED: frozenset[Feature] = frozenset(
    (
        "audio",
        "files",
        "remote_media",
        "hosted_tools",
        "web_search",
        "service_tier",
        "prompt_caching",
        "prediction",
    )
)

# Hints about speed and price: an answer without them is as good.
HINTS: frozenset[Feature] = frozenset(("service_tier", "prompt_caching", "prediction"))

# The fields of a chat, other than messages, that may request a feature.
_ASKING = (
    "tools",
    "functions",
    "logprobs",
    "response_format",
    "modalities",
    "audio",
    "service_tier",
    "web_search_options",
    "prediction",
)
_given = attrgetter(*_ASKING)
_NOTHING_GIVEN = (None,) * len(_ASKING)
_USUAL_TIERS = (None, "auto", "default")
_FUNCTION_FIELDS = frozenset(("type", "function", "cache_control"))
_PART_FEATURES: dict[str, Feature | None] = {
    "text": None,
    "refusal": None,
    "image_url": "vision",
    "input_audio": "audio",
}


def features_of(request: Request) -> dict[Feature, str]:
    """Return the features that a request needs, each with the first field that requests it."""
    needed: dict[Feature, str] = {}
    if isinstance(request, TaskRequest) or (isinstance(request, ChatRequest) and _asks_nothing(request)):
        return needed
    requested = _of_completion(request) if isinstance(request, CompletionRequest) else _of_chat(request)
    for feature, field in requested:
        needed.setdefault(feature, field)
    return needed


def _asks_nothing(request: ChatRequest) -> bool:
    """Return whether a chat has only text and none of those fields.

    This is common, and takes a quarter of the time.
    """
    return _given(request) == _NOTHING_GIVEN and all(map(_is_plain, request.messages))


_Asked = Iterator[tuple[Feature, str]]


def _of_completion(request: CompletionRequest) -> _Asked:
    if request.suffix:
        yield "suffix", "suffix"
    if (request.best_of or 1) > 1:
        yield "best_of", "best_of"
    if request.logprobs is not None:
        yield "logprobs", "logprobs"
    if request.echo and request.logprobs is not None:
        yield "echo_logprobs", "logprobs"
    if request.service_tier not in _USUAL_TIERS:
        yield "service_tier", "service_tier"


def _of_chat(request: ChatRequest) -> _Asked:
    yield from _of_fields(request)
    yield from _of_tools(request)
    for at, message in enumerate(request.messages):
        if not _is_plain(message):
            yield from _of_message(message, f"messages[{at}]")


def _of_fields(request: ChatRequest) -> _Asked:
    if request.logprobs:
        yield "logprobs", "logprobs"
    if request.response_format and request.response_format.get("type") not in (None, "text"):
        yield "json", "response_format"
    if request.modalities and request.modalities != ["text"]:
        yield "audio", "modalities"
    if request.audio is not None:
        yield "audio", "audio"
    if request.service_tier not in _USUAL_TIERS:
        yield "service_tier", "service_tier"
    if request.web_search_options is not None:
        yield "web_search", "web_search_options"
    if request.prediction is not None:
        yield "prediction", "prediction"


def _of_tools(request: ChatRequest) -> _Asked:
    for at, tool in enumerate(request.tools or ()):
        yield from _of_tool(tool, f"tools[{at}]")
    for at, function in enumerate(request.functions or ()):
        yield "tools", "functions"
        if "cache_control" in function:
            yield "prompt_caching", f"functions[{at}].cache_control"


def _of_tool(tool: dict[str, Any], field: str) -> _Asked:
    yield "tools", "tools"
    # The caller runs only functions. Other kinds, or functions with a provider's own fields, may run at the
    # provider: searches, code, calls to other servers.
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or tool.keys() - _FUNCTION_FIELDS:
        yield "hosted_tools", field
    if "cache_control" in tool or (isinstance(function, dict) and "cache_control" in function):
        yield "prompt_caching", f"{field}.cache_control"


def _is_plain(message: Message) -> bool:
    """Return whether this is a plain text message, which every model can process."""
    return (
        isinstance(message.content, str)
        and message.role not in ("tool", "function")
        and not message.tool_calls
        and message.cache_control is None
        and message.audio is None
    )


def _of_message(message: Message, field: str) -> _Asked:
    if message.cache_control is not None or any("cache_control" in call for call in message.tool_calls or ()):
        yield "prompt_caching", f"{field}.cache_control"
    # Past calls and their results: a model without tools in its template would not see them.
    if message.tool_calls or message.role in ("tool", "function"):
        yield "tools", field
    if message.audio is not None:
        yield "audio", f"{field}.audio"
    if isinstance(message.content, list):
        for at, part in enumerate(message.content):
            yield from _of_part(part, f"{field}.content[{at}]")


def _of_part(part: ContentPart, field: str) -> _Asked:
    if feature := _PART_FEATURES.get(part.type, "files"):
        yield feature, field
    if part.is_by_reference:
        yield "remote_media", f"{field}.image_url"
    if part.cache_control is not None:
        yield "prompt_caching", f"{field}.cache_control"
