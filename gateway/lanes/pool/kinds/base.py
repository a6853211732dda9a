"""The interface of every backend kind to the prober: it queries the backend and reports the answer."""

from typing import Protocol

from msgspec import Struct

from gateway.lanes.pool.queries import Asker, Reply, explain
from gateway.lanes.pool.report import BackendReport


class Reader(Protocol):
    """Queries one backend.

    A backend that was away gets a new reader, because remembered values may be outdated.
    """

    async def read(self, asker: Asker) -> BackendReport:
        """Return the backend's current report. Raises ProbeFailed if it does not list its models."""


class ModelMeta(Struct, frozen=True):
    """The model metadata of llama-server, and of servers that imitate it."""

    n_ctx: int | None = None
    size: int | None = None
    ftype: str | None = None


class LoadStatus(Struct, frozen=True):
    """`args` are the arguments of a model's server process."""

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
    """An entry of GET /v1/models: OpenAI's fields, then fields that some servers add."""

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
    """Return the entries. Raises ProbeFailed with a description of the actual answer."""
    if listed := reply.read(ModelList):
        return listed.data or []
    # If an additional field has an unexpected type, ignore the field, not the backend.
    if bare := reply.read(_BareList):
        return [ListedModel(entry.id) for entry in bare.data]
    raise explain(reply)


def positive(number: int | None) -> int | None:
    """Return a known count; servers write 0 or -1 for an unknown one."""
    return number if number is not None and 0 < number < 2**31 else None
