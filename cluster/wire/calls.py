"""Messages between a gateway and a coordinator or an embedder."""

from msgspec import Struct

from cluster.embedding import EmbedRequest
from cluster.generation import GenerateRequest, GenerationEvent


class Generate(Struct, frozen=True, tag=True):
    """A request to generate an answer."""

    request: GenerateRequest


class Cancel(Struct, frozen=True, tag=True):
    """An order to stop a request."""

    request_id: str


class Events(Struct, frozen=True, tag=True):
    """The events of one request since the last such message."""

    request_id: str
    events: list[GenerationEvent]


class Rejected(Struct, frozen=True, tag=True):
    """The end of a request without its answer. `code` is that of a GenerationError."""

    request_id: str
    code: str
    message: str
    param: str | None = None


class Embed(Struct, frozen=True, tag=True):
    """A request to embed texts."""

    request: EmbedRequest


class Embedded(Struct, frozen=True, tag=True):
    """The answer to Embed. Its payload has the vectors as in `Embeddings`."""

    request_id: str
    dimensions: int
    token_counts: list[int]
    compute_ns: int
