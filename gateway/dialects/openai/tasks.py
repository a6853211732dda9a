"""Requests other than for generated text: embeddings, rankings, moderation, pictures, sound."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.dialects.openai.fields import INPUTS_MAX, RequestFields, TokenId

Documents = Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=INPUTS_MAX)]


class TaskRequest(RequestFields, frozen=True, kw_only=True):
    """`texts` are the parts of a request that a model reads, if they are text."""

    @property
    def tokens_limit(self) -> int:
        """Always 0: no text is generated."""
        return 0

    @property
    def texts(self) -> list[str]:
        return []


class EmbeddingRequest(TaskRequest, frozen=True, kw_only=True):
    """The fields of POST /v1/embeddings that the gateway uses."""

    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def texts(self) -> list[str]:
        """Return the inputs that are texts."""
        return [self.input] if isinstance(self.input, str) else [one for one in self.input if isinstance(one, str)]

    @property
    def token_ids(self) -> list[list[int]]:
        """Return the inputs that are lists of tokens; one list of tokens is one input."""
        if isinstance(self.input, str):
            return []
        single = [one for one in self.input if isinstance(one, int)]
        return [single] if single else [one for one in self.input if isinstance(one, list)]


class RerankRequest(TaskRequest, frozen=True, kw_only=True):
    """POST /v1/rerank in the format of Jina and Cohere: ranks documents by how well they answer the query."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Documents
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def texts(self) -> list[str]:
        documents = [one if isinstance(one, str) else one.get("text") for one in self.documents]
        # The model reads the query again with each document.
        return [part for text in documents if isinstance(text, str) for part in (self.query, text)]


class ModerationRequest(TaskRequest, frozen=True, kw_only=True):
    input: str | Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=INPUTS_MAX)]

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else [one for one in self.input if isinstance(one, str)]


class ImageRequest(TaskRequest, frozen=True, kw_only=True):
    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    n: Annotated[int, Meta(ge=1, le=10)] | None = None

    @property
    def texts(self) -> list[str]:
        return [self.prompt]


class SpeechRequest(TaskRequest, frozen=True, kw_only=True):
    """Text to sound; self-hosted servers take longer texts than OpenAI's 4096 characters."""

    input: Annotated[str, Meta(min_length=1, max_length=100_000)]
    voice: str | dict[str, Any] | None = None
    response_format: str | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["audio", "sse"] | None = None

    @property
    def is_stream(self) -> bool:
        return self.stream_format == "sse"

    @property
    def texts(self) -> list[str]:
        return [self.input]


class FormRequest(TaskRequest, frozen=True, kw_only=True):
    """The known fields of a multipart form, whose files are forwarded byte for byte."""
