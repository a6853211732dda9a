"""/admin/advise and /admin/cluster/model: recommend where to run a model, and load it in the cluster."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from cluster.errors import ModelError
from gateway.admin.cluster_model import ModelQuestion, NewModel, advise
from gateway.advice.facts import advice_facts
from gateway.api.authority import Operator
from gateway.app_state import Controller, Lanes, ModelLoader, Settings
from runtime.errors import Conflict

router = APIRouter(prefix="/admin")

# The interval between two lines of progress, in seconds.
_LINE_S = 0.25


@router.post("/advise")
async def show_advice(
    _: Operator, settings: Settings, lanes: Lanes, controller: Controller, question: ModelQuestion
) -> dict[str, Any]:
    """List every option to run a model, the recommended one with its reason, and the break-even of your machines."""
    return advice_facts(await advise(settings, lanes, controller, question))


@router.post("/cluster/model")
async def load_model(authority: Operator, loader: ModelLoader, body: NewModel) -> StreamingResponse:
    """Load a model and stream lines of JSON: `done_bytes` of `total_bytes`, at the end `model` or `error`.

    If the client disconnects, loading stops. A cluster serves one model until it restarts: a loaded model is not
    replaced.
    """
    await loader.allow(authority, body.model)
    return StreamingResponse(_loading(loader, body.model), media_type="application/x-ndjson")


async def _loading(loader: ModelLoader, reference: str) -> AsyncGenerator[bytes]:
    newest: list[tuple[int, int]] = []
    # The progress comes from a thread; only the newest value matters.
    reading = loader.load(reference, lambda done, total: newest.append((done, total)))
    loading = asyncio.create_task(reading, name="load model")
    try:
        while not loading.done():
            await asyncio.wait((loading,), timeout=_LINE_S)
            if newest:
                done_bytes, total_bytes = newest[-1]
                newest.clear()
                yield _line({"done_bytes": done_bytes, "total_bytes": total_bytes})
        yield _line(_outcome(loading))
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


def _outcome(loading: "asyncio.Task[str | None]") -> dict[str, Any]:
    try:
        return {"model": loading.result()}
    except (ModelError, Conflict) as error:
        return {"error": str(error)}


def _line(facts: dict[str, Any]) -> bytes:
    return orjson.dumps(facts) + b"\n"
