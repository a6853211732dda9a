"""/admin/advise and /admin/cluster/model: recommend where to run a model, and load it in the cluster."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import Field

from cluster.control.deployment import Model
from cluster.errors import ModelError, ModelNotFound
from cluster.models.layer_cost import Precision
from gateway.admin.cluster_model import NewModel, Reference, allow_loading, read_model
from gateway.admin.fields import Body
from gateway.advice.facts import advice_facts
from gateway.advice.service import Wishes, ask_advice
from gateway.api.authority import Operator
from gateway.services import Services
from runtime.errors import Conflict, NotFound, RequestInvalid

router = APIRouter(prefix="/admin")

# The interval between two lines of progress, in seconds.
_LINE_S = 0.25


class ModelQuestion(Body):
    """A folder or GGUF file of the gateway's machine, or a Hugging Face id; `compare` is a cloud model's name."""

    model: Reference
    compare: Annotated[str | None, Field(max_length=200)] = None
    context_tokens: Annotated[int | None, Field(ge=64, le=2**24)] = None
    precision: Precision | None = None


@router.post("/advise")
async def show_advice(authority: Operator, question: ModelQuestion) -> dict[str, Any]:
    """List every option to run a model, the recommended one with its reason, and the break-even of your machines.

    Raises NotFound if there is no such model, and RequestInvalid if it cannot be used.
    """
    wishes = Wishes(question.context_tokens, question.precision, question.compare)
    try:
        found = await ask_advice(authority.services, question.model, wishes)
    except ModelNotFound as error:
        raise NotFound(str(error), param="model") from None
    except ModelError as error:
        raise RequestInvalid(f"model: {error}", param="model") from None
    return advice_facts(found)


@router.post("/cluster/model")
async def load_model(authority: Operator, body: NewModel) -> StreamingResponse:
    """Load a model and stream lines of JSON: `done_bytes` of `total_bytes`, at the end `model` or `error`.

    If the client disconnects, loading stops. A cluster serves one model until it restarts: a loaded model is not
    replaced.
    """
    await allow_loading(authority, body.model)
    return StreamingResponse(_loading(authority.services, body.model), media_type="application/x-ndjson")


async def _loading(services: Services, reference: str) -> AsyncGenerator[bytes]:
    newest: list[tuple[int, int]] = []
    # The progress comes from a thread; only the newest value matters.
    reading = read_model(services, reference, lambda done, total: newest.append((done, total)))
    loading = asyncio.create_task(reading, name="load model")
    try:
        while not loading.done():
            await asyncio.wait((loading,), timeout=_LINE_S)
            if newest:
                done_bytes, total_bytes = newest[-1]
                newest.clear()
                yield _line({"done_bytes": done_bytes, "total_bytes": total_bytes})
        yield _line(_outcome(services, loading))
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


def _outcome(services: Services, loading: "asyncio.Task[Model]") -> dict[str, Any]:
    try:
        loading.result()
    except (ModelError, Conflict) as error:
        return {"error": str(error)}
    return {"model": services.controller.model_name}


def _line(facts: dict[str, Any]) -> bytes:
    return orjson.dumps(facts) + b"\n"
