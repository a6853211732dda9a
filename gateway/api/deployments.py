"""/admin/cluster/models: the cluster's models; run, load, stop and remove them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gateway.admin import cluster_model
from gateway.admin.cluster_model import Name, NamedModel, NewModel
from gateway.admin.fields import Facts
from gateway.api.authority import Operator
from gateway.app_state import Controller, Settings
from runtime.errors import ServiceError

router = APIRouter(prefix="/admin/cluster/models")

# The interval between two lines of progress, in seconds.
_LINE_S = 0.25


@router.get("")
async def list_models(_: Operator, settings: Settings, controller: Controller) -> list[Facts]:
    """List the cluster's models with their states; times are in seconds, `setting` names the setting that has it."""
    return cluster_model.list_models(settings.cluster, controller)


@router.post("")
async def run_model(authority: Operator, controller: Controller, body: NewModel) -> StreamingResponse:
    """Run a model and stream lines of JSON: `done_bytes` of `total_bytes`, at the end `model` or `error`.

    If the client disconnects, it is not run. `replace` names a model whose place and name the new one takes; then
    the answer ends when the new one serves.
    """
    await cluster_model.allow_run(authority, controller, body)
    return StreamingResponse(_running(controller, body), media_type="application/x-ndjson")


@router.post("/load")
async def load_model(authority: Operator, controller: Controller, body: NamedModel) -> Facts:
    """Load a stopped model; answers at once, the list shows when it is ready."""
    await cluster_model.load_model(authority, controller, body.model)
    return {"model": body.model}


@router.post("/stop")
async def stop_model(authority: Operator, controller: Controller, body: NamedModel) -> Facts:
    """Unload a model when its answers have ended; the next request for it loads it again."""
    await cluster_model.stop_model(authority, controller, body.model)
    return {"stopped": body.model}


@router.delete("")
async def remove_model(
    authority: Operator, settings: Settings, controller: Controller, model: Annotated[Name, Query()]
) -> Facts:
    """Unload a model when its answers have ended, and remove it from the list."""
    await cluster_model.remove_model(authority, settings.cluster, controller, model)
    return {"removed": model}


async def _running(controller: Controller, new: NewModel) -> AsyncGenerator[bytes]:
    newest: list[tuple[int, int]] = []
    # The progress comes from a thread; only the newest value matters.
    reading = cluster_model.run_model(controller, new, lambda done, total: newest.append((done, total)))
    running = asyncio.create_task(reading, name="run model")
    try:
        while not running.done():
            await asyncio.wait((running,), timeout=_LINE_S)
            if newest:
                done_bytes, total_bytes = newest[-1]
                newest.clear()
                yield _line({"done_bytes": done_bytes, "total_bytes": total_bytes})
        yield _line(_outcome(running))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _outcome(running: "asyncio.Task[str]") -> dict[str, Any]:
    try:
        return {"model": running.result()}
    except ServiceError as error:
        return {"error": str(error), "param": error.param}


def _line(facts: dict[str, Any]) -> bytes:
    return orjson.dumps(facts) + b"\n"
