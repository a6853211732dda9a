"""The shapes of a Messages request, checked as they are parsed. Unused fields are ignored."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.dialects.openai import STOPS_MAX, Extras, ModelName, PositiveTokens, ProviderPreferences, StopString


class Base64Source(Struct, frozen=True, tag="base64"):
    media_type: Annotated[str, Meta(pattern=r"^[\w.+-]+/[\w.+-]+\Z")]
    data: str


class UrlSource(Struct, frozen=True, tag="url"):
    url: str


class TextSource(Struct, frozen=True, tag="text"):
    data: str
    media_type: str = "text/plain"


class Text(Struct, frozen=True, tag="text"):
    text: str


class Image(Struct, frozen=True, tag="image"):
    source: Base64Source | UrlSource


class Document(Struct, frozen=True, tag="document"):
    source: Base64Source | UrlSource | TextSource
    title: str | None = None


class SearchResult(Struct, frozen=True, tag="search_result"):
    content: list[Text]
    title: str = ""
    source: str = ""


class Thinking(Struct, frozen=True, tag="thinking"):
    thinking: str = ""


class RedactedThinking(Struct, frozen=True, tag="redacted_thinking"):
    data: str = ""


class ToolUse(Struct, frozen=True, tag="tool_use"):
    id: Annotated[str, Meta(min_length=1, max_length=256)]
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input: dict[str, Any] = {}


class ToolReference(Struct, frozen=True, tag="tool_reference"):
    """A tool that the client's tool search found; the request also lists it among its tools."""

    tool_name: str


class ToolResult(Struct, frozen=True, tag="tool_result"):
    tool_use_id: Annotated[str, Meta(min_length=1, max_length=256)]
    content: str | list[Text | Image | Document | SearchResult | ToolReference] = ""
    is_error: bool | None = None


Block = Text | Image | Document | SearchResult | Thinking | RedactedThinking | ToolUse | ToolResult


class Turn(Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Metadata(Struct, frozen=True):
    user_id: str | None = None


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountRequest(Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: ModelName
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=10_000)]
    system: str | list[Text] | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: PositiveTokens
    stream: bool = False
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=STOPS_MAX)] | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None
