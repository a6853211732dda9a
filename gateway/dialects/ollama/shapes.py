"""The shapes of Ollama's requests, checked as they are parsed. Unused fields are ignored."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.dialects.model_loading import keep_alive_s
from gateway.dialects.openai import STOPS_MAX, TOOLS_MAX, Extras, ModelName, ProviderPreferences, StopString

Image = Annotated[str, Meta(min_length=1)]
Format = Literal["", "json"] | dict[str, Any]


class Function(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


class ToolCall(Struct, frozen=True):
    function: Function
    id: str | None = None


class ChatMessage(Struct, frozen=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    images: list[Image] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Options(Struct, frozen=True):
    """Options that every backend supports; -1 and -2 for `num_predict` mean no limit."""

    num_predict: Annotated[int, Meta(ge=-2, le=10_000_000)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=STOPS_MAX)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None


class CommonFields(Struct, frozen=True, kw_only=True):
    """Fields of every request: its model, and Millrace's routing preferences."""

    model: ModelName
    millrace: Extras | None = None
    provider: ProviderPreferences | None = None


class GenerationFields(CommonFields, frozen=True, kw_only=True):
    """Fields that chats and completions share. Answers are streamed unless `stream` is false."""

    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | Annotated[str, Meta(max_length=40)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def is_stream(self) -> bool:
        return self.stream is not False

    @property
    def is_last(self) -> bool:
        """Whether `keep_alive` is zero: the model is then unloaded afterwards."""
        return keep_alive_s(self.keep_alive) == 0

    @property
    def is_time(self) -> bool:
        """Whether `keep_alive` is missing or has a form that Ollama accepts."""
        return self.keep_alive is None or keep_alive_s(self.keep_alive) is not None


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """POST /api/chat."""

    messages: Annotated[list[ChatMessage], Meta(max_length=10_000)] = []
    tools: Annotated[list[dict[str, Any]], Meta(max_length=TOOLS_MAX)] | None = None


class GenerateBody(GenerationFields, frozen=True, kw_only=True):
    """POST /api/generate. A `raw` prompt goes to the model without the chat's template around it."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    images: list[Image] | None = None
    raw: bool | None = None


class EmbedBody(CommonFields, frozen=True, kw_only=True):
    """POST /api/embed."""

    input: str | list[str]
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None


class EmbeddingsBody(CommonFields, frozen=True, kw_only=True):
    """POST /api/embeddings, the older route: one text, one vector."""

    prompt: str
