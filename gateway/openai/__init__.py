"""The OpenAI API's shapes: requests checked as they are parsed, and where they are answered."""

from gateway.openai.fields import (
    BIASES_MAX,
    INPUTS_MAX,
    STOPS_MAX,
    TOKENS_MAX,
    TOOLS_MAX,
    Extras,
    MaxPrice,
    ModelName,
    PositiveTokens,
    ProviderPreferences,
    StopString,
    TokenId,
)
from gateway.openai.forms import FORMS, read_form, with_model
from gateway.openai.generation import (
    ChatRequest,
    CompletionRequest,
    ContentPart,
    GenerationRequest,
    ImageUrl,
    Message,
    StreamOptions,
)
from gateway.openai.kinds import DOES, GENERATES, KINDS, PATHS, Kind
from gateway.openai.models import model_entry
from gateway.openai.reading import Request, read_request
from gateway.openai.tasks import (
    EmbeddingRequest,
    FormRequest,
    ImageRequest,
    ModerationRequest,
    RerankRequest,
    SpeechRequest,
    TaskRequest,
)

__all__ = [
    "BIASES_MAX",
    "DOES",
    "FORMS",
    "GENERATES",
    "INPUTS_MAX",
    "KINDS",
    "PATHS",
    "STOPS_MAX",
    "TOKENS_MAX",
    "TOOLS_MAX",
    "ChatRequest",
    "CompletionRequest",
    "ContentPart",
    "EmbeddingRequest",
    "Extras",
    "FormRequest",
    "GenerationRequest",
    "ImageRequest",
    "ImageUrl",
    "Kind",
    "MaxPrice",
    "Message",
    "ModelName",
    "ModerationRequest",
    "PositiveTokens",
    "ProviderPreferences",
    "Request",
    "RerankRequest",
    "SpeechRequest",
    "StopString",
    "StreamOptions",
    "TaskRequest",
    "TokenId",
    "model_entry",
    "read_form",
    "read_request",
    "with_model",
]
