"""The OpenAI API's shapes: requests checked as they are parsed, and their paths.

Modules:
    checks           Checks that types cannot express: fields that exclude or need each other
    fields           Fields common to all requests, and the bounds of field values
    forms            Multipart forms, forwarded byte for byte: only the few fields that routing needs are read
    generation       Requests for generated text: chats and completions
    kinds            The kinds of requests, and their paths at OpenAI-compatible servers
    part_head        The head of a form's part, read so strictly that every backend reads it the same way
    prompt_estimate  Estimates a prompt's tokens without a tokenizer
    reader           Parses a body into a request, once, and checks it meanwhile; errors name the field
    tasks            Requests other than for generated text: embeddings, rankings, moderation, pictures, sound
"""

from gateway.dialects.openai.fields import (
    BIASES_MAX,
    HAD_TOKENS_MAX,
    INPUTS_MAX,
    STOPS_MAX,
    TOKENS_MAX,
    TOOLS_MAX,
    Extras,
    Had,
    MaxPrice,
    ModelName,
    PositiveTokens,
    ProviderPreferences,
    StopString,
    TokenId,
)
from gateway.dialects.openai.forms import FORMS, read_form, with_model
from gateway.dialects.openai.generation import (
    ChatRequest,
    CompletionRequest,
    ContentPart,
    GenerationRequest,
    ImageUrl,
    Message,
    StreamOptions,
)
from gateway.dialects.openai.kinds import DOES, GENERATES, KINDS, PATHS, Kind
from gateway.dialects.openai.reader import Request, read_request
from gateway.dialects.openai.tasks import (
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
    "HAD_TOKENS_MAX",
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
    "Had",
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
    "read_form",
    "read_request",
    "with_model",
]
