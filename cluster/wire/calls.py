"""Messages between a gateway and a coordinator or an embedder."""

from msgspec import Struct

from cluster.embedding import EmbedRequest
from cluster.generation import GenerateRequest, GenerationEvent
from cluster.wire.orders import DeploymentName


class Generate(Struct, frozen=True, tag=True):
    """A request to generate an answer, from this deployment. Another one refuses it: ports are used again."""

    request: GenerateRequest
    deployment: DeploymentName = ""


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
    """A request to embed texts, for this deployment. Another one refuses it."""

    request: EmbedRequest
    deployment: DeploymentName = ""


class Embedded(Struct, frozen=True, tag=True):
    """The answer to Embed. Its payload has the vectors as in `Embeddings`."""

    request_id: str
    dimensions: int
    token_counts: list[int]
    compute_ns: int
