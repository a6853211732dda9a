"""The shapes of a Responses request, checked as they are parsed. Unused fields are ignored."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.dialects.openai import TOOLS_MAX, Extras, ModelName, PositiveTokens, ProviderPreferences

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Item = dict[str, Any]


class Part(Struct, frozen=True):
    """A part of a message's content. The type determines which fields are required."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    filename: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    input_audio: dict[str, Any] | None = None


class MessageItem(Struct, frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class CallItem(Struct, frozen=True):
    call_id: Name
    name: Name
    arguments: str
    namespace: Name | None = None


class CustomCallItem(Struct, frozen=True):
    """A call to a tool whose input is free text."""

    call_id: Name
    name: Name
    input: str
    namespace: Name | None = None


class OutputItem(Struct, frozen=True):
    """The result of a call."""

    call_id: Name
    output: str | list[Part]


class ReferenceItem(Struct, frozen=True):
    id: Name


class Tool(Struct, frozen=True, omit_defaults=True):
    """A tool. `tools` are a group's tools, `format` is the format of a custom tool's input."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: "Annotated[list[Tool], Meta(max_length=TOOLS_MAX)] | None" = None


class ToolsItem(Struct, frozen=True):
    """Tools that the client adds within its input."""

    tools: Annotated[list[Tool], Meta(max_length=TOOLS_MAX)]


class TextFormat(Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    model: ModelName
    input: str | Annotated[list[Item], Meta(max_length=10_000)] = ""
    instructions: str | list[Item] | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: PositiveTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
        ]
        | None
    ) = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ())
