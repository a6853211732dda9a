"""Embeddings of the cluster lane: its offer, and vectors in OpenAI's format."""

import asyncio
import base64
from array import array
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from cluster.control.embedding_manager import EmbeddingManager
from cluster.control.readiness import Status
from cluster.control.supervisor import Supervisor
from cluster.embedding import Embeddings, EmbedRequest
from cluster.errors import ClusterBusy, ClusterUnavailable, ProcessLost
from gateway.dialects.openai import EmbeddingRequest, Kind
from gateway.errors import LaneBusy
from gateway.lanes.base import Answer, Call, GeneratorBody, Meter, Offer, State, begun
from runtime.errors import LaneFailed

# An unloaded model is loaded when it is asked for, as a pool backend loads one.
STATES: dict[Status, State] = {
    "ready": "ready",
    "unloaded": "ready",
    "planning": "starting",
    "waiting": "starting",
    "draining": "starting",
}
# The assumed time to load a model if none was loaded before, in seconds.
_LOAD_S = 10.0

_KINDS: frozenset[Kind] = frozenset(("embedding",))
# Writing a vector as text takes a fraction of a millisecond. Yield to other tasks after this number of vectors.
_VECTORS_AT_ONCE = 8
_VALUE_BYTES = 4


def embedding_offers(manager: EmbeddingManager, model: str, backend: str) -> list[Offer]:
    """Return the embedding model's offer, if `model` names it."""
    if manager.model_name != model:
        return []
    status, reason = manager.readiness.status
    state = STATES.get(status, "down")
    return [
        Offer(
            lane="cluster",
            backend=backend,
            model=model,
            state=state,
            note="" if status == "ready" else reason,
            features=frozenset(),
            kinds=_KINDS,
            is_resident=status != "unloaded",
            load_s=loading_s(manager),
        )
    ]


def loading_s(supervisor: Supervisor[Any]) -> float:
    """Return the seconds that loading is expected to take; 0 if the model is loaded."""
    return 0.0 if supervisor.readiness.status[0] == "ready" else supervisor.load_s or _LOAD_S


async def open_embeddings(
    manager: EmbeddingManager, call: Call, offer: Offer, patience_s: float | None = None
) -> Answer:
    """Return an answer once all vectors are computed. `patience_s` is the wait for a machine.

    Raises LaneBusy if no machine is free by then, LaneFailed if the machine is lost, and GenerationError.
    """
    request = call.request
    assert isinstance(request, EmbeddingRequest)
    embed_request = EmbedRequest(
        id=call.id, texts=request.texts, token_ids=request.token_ids, dimensions=request.dimensions
    )
    try:
        done = await manager.embed(embed_request, patience_s)
    except (ClusterBusy, ClusterUnavailable) as error:
        raise LaneBusy(error.message, code=error.code) from error
    except ProcessLost as error:
        raise LaneFailed(error.message, code=error.code) from error
    meter = Meter(prompt_tokens=sum(done.token_counts), source="tokenizer", compute_ns=done.compute_ns)
    return Answer(
        200, "application/json", GeneratorBody(await begun(_write(request, offer.model_there, done, meter))), meter
    )


async def _write(request: EmbeddingRequest, model: str, done: Embeddings, meter: Meter) -> AsyncGenerator[bytes]:
    yield b""
    yield b'{"object":"list","data":['
    size_bytes = _VALUE_BYTES * done.dimensions
    count = len(done.token_counts)
    for begin in range(0, count, _VECTORS_AT_ONCE):
        indices = range(begin, min(begin + _VECTORS_AT_ONCE, count))
        entries = [_entry(at, done.vectors[at * size_bytes : (at + 1) * size_bytes], request) for at in indices]
        yield (b"," if begin else b"") + b",".join(entries)
        await asyncio.sleep(0)
    tokens = meter.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    ending = b'],"model":' + msgspec.json.encode(model) + b',"usage":' + msgspec.json.encode(usage) + b"}"
    meter.is_complete = True
    yield ending


def _entry(index: int, raw: bytes, request: EmbeddingRequest) -> bytes:
    is_text = request.encoding_format != "base64"
    embedding = array("f", raw).tolist() if is_text else base64.b64encode(raw).decode()
    return msgspec.json.encode({"object": "embedding", "index": index, "embedding": embedding})
