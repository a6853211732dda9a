"""Recognizes the kind of server at an address by answers that only this kind gives."""

from msgspec import Struct

from gateway.lanes.pool.kinds.base import ListedModel, ModelList
from gateway.lanes.pool.queries import Asker, Reply
from gateway.lanes.pool.report import ProbeFailed
from gateway.settings.pool import BackendKind

# The owner named in the entries of GET /v1/models, by kind.
_BY_OWNER: dict[str, BackendKind] = {
    "llamacpp": "llama-server",
    "vllm": "vllm",
    "sglang": "sglang",
    "organization_owner": "lm-studio",
    "tabbyAPI": "tabby",
    "exo": "exo",
    "gpustack": "gpustack",
    "library": "ollama",
    "millrace": "millrace",
}
# The text of the Server header, by kind.
_BY_SERVER: tuple[tuple[str, BackendKind], ...] = (("llama.cpp", "llama-server"), ("BaseHTTP/", "mlx-lm"))
# distributed-llama gives every model this name.
_DLLAMA = ListedModel("dl", "user")


class _Version(Struct, frozen=True):
    """Ollama's version. A Millrace, which also answers Ollama's clients, names itself here."""

    version: str
    server: str = ""


async def recognize(asker: Asker) -> BackendKind:
    """Return the kind; "openai" for a model list without marks of another kind.

    Raises ProbeFailed if there is no such server.
    """
    reply = await asker.models()
    listed = reply.read(ModelList)
    if listed and (kind := _by_list(listed.data or [], reply)):
        return kind
    if kind := next((kind for mark, kind in _BY_SERVER if reply.server.startswith(mark)), None):
        return kind
    if kind := await _by_endpoint(asker):
        return kind
    if listed or reply.status in (401, 403, 503):
        return "openai"
    raise ProbeFailed("strange", f"is not a known model server (answers {reply.status} to GET /models)")


def _by_list(entries: list[ListedModel], reply: Reply) -> BackendKind | None:
    if entries == [_DLLAMA] and not reply.server:
        return "dllama"
    for entry in entries[:1]:
        return _BY_OWNER.get(entry.owned_by or "")
    return None


async def _by_endpoint(asker: Asker) -> BackendKind | None:
    """Return the kind by its own endpoints, because owner names in the list do not identify these kinds.

    Ollama uses the makers' names; LM Studio and a Millrace may have none.
    """
    try:
        if version := (await asker.get("/api/version")).read(_Version):
            return "millrace" if version.server == "millrace" else "ollama"
        if (await asker.get("/api/v0/models")).read(ModelList):
            return "lm-studio"
    except ProbeFailed:
        pass  # It answered before, so it is none of these kinds.
    return None
