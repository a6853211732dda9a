"""The interface of every backend kind to the prober: it queries the backend and reports the answer."""

from typing import Protocol

from msgspec import Struct

from gateway.lanes.pool.queries import Asker, Reply, explain
from gateway.lanes.pool.report import BackendReport


class Reader(Protocol):
    """Asks one backend. One is made for each, and again after it was away: what it remembers may be of before."""

    async def read(self, asker: Asker) -> BackendReport:
        """The backend's current report. Raises ProbeFailed if it does not list its models."""


class ModelMeta(Struct, frozen=True):
    """llama-server's, and that of those who learned from it."""

    n_ctx: int | None = None
    size: int | None = None
    ftype: str | None = None


class LoadStatus(Struct, frozen=True):
    """`args` are the words that a model's server is started with."""

    value: str = ""
    failed: bool = False
    args: list[str] | None = None


class Architecture(Struct, frozen=True):
    input_modalities: list[str] = []


class GatewayExtras(Struct, frozen=True):
    """The facts that another Millrace lists for a model (gateway.dialects.openai.models)."""

    lanes: list[str] = []
    can: list[str] | None = None
    features: list[str] | None = None
    context_tokens: int | None = None
    quantization: str | None = None
    is_loaded: bool = True
    weights: str = ""


class ListedModel(Struct, frozen=True):
    """An entry of GET /v1/models: OpenAI's fields, then what one server or another adds to them."""

    id: str
    owned_by: str | None = None
    aliases: list[str] | None = None
    max_model_len: int | None = None
    context_length: int | None = None
    quantization: str | None = None
    tasks: list[str] | None = None
    meta: ModelMeta | None = None
    status: LoadStatus | None = None
    architecture: Architecture | None = None
    millrace: GatewayExtras | None = None


class ModelList(Struct, frozen=True):
    """GET /v1/models. Ollama without models has null in place of the list."""

    data: list[ListedModel] | None


class _BareModel(Struct, frozen=True):
    id: str


class _BareList(Struct, frozen=True):
    data: list[_BareModel]


def read_list(reply: Reply) -> list[ListedModel]:
    """The entries. Raises ProbeFailed that says what came instead."""
    if listed := reply.read(ModelList):
        return listed.data or []
    # A field beyond OpenAI's that is not what we know it as costs us that field, not the backend.
    if bare := reply.read(_BareList):
        return [ListedModel(entry.id) for entry in bare.data]
    raise explain(reply)


def positive(number: int | None) -> int | None:
    """A count that means something; servers write 0 or -1 for one they do not know."""
    return number if number is not None and 0 < number < 2**31 else None
