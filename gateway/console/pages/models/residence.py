"""Loading and unloading models: at backends that support it, and in a cluster without a model."""

import asyncio
from typing import Annotated, Literal

import msgspec
import structlog
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cluster.errors import ModelError
from gateway.admin.cluster_model import NewModel, allow_loading, read_model
from gateway.console.access import Operator, Visitor
from gateway.console.forms import read_form
from gateway.console.pages.models.overview import PATH, models_page
from gateway.console.pages.models.state import caller_of
from gateway.console.renderer import go
from gateway.dialects.model_loading import Upkeep
from gateway.services import Services
from runtime.errors import Conflict, ServiceError
from runtime.request_ids import new_request_id

log = structlog.get_logger(__name__)

# After this time the response no longer waits; the list shows the outcome.
_PATIENCE_S = 8.0

router = APIRouter(prefix=PATH)


class Wish(BaseModel):
    """A model of the pool, by its public name."""

    model: Annotated[str, Field(max_length=256)]
    wanted: Literal["load", "unload"]


@router.post("/memory")
async def keep_or_put_away(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Wish)
    if form.value is None:
        return go(visitor, PATH, " ".join(form.errors.values()))
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    visitor.services.afterwork.begin(_tell(visitor, form.value, result))
    try:
        message = await asyncio.wait_for(asyncio.shield(result), _PATIENCE_S)
    except TimeoutError:
        message = f"{form.value.model} is still loading. Its row shows when it is ready."
    return go(visitor, PATH, message)


async def _tell(visitor: Visitor, wish: Wish, result: asyncio.Future[str]) -> None:
    """Send the request that Ollama's clients use: a chat without a message."""
    body = msgspec.json.encode({"model": wish.model, "messages": [{"role": "user", "content": ""}]})
    upkeep = Upkeep(wish.wanted, wish.model, body, {}, 0 if wish.wanted == "unload" else None)
    message = f"{wish.model} {'loaded' if wish.wanted == 'load' else 'unloaded'}."
    try:
        loading = visitor.services.requests.model_loading
        await loading.look_after(caller_of(visitor), new_request_id(), upkeep, visitor.address)
    except ServiceError as error:
        message = error.message
        log.warning("model not loaded or unloaded", model=wish.model, wanted=wish.wanted, reason=message)
    if not result.done():
        result.set_result(message)


@router.post("/cluster")
async def load_into_cluster(request: Request, visitor: Operator) -> Response:
    """Download, read and check the model in the background; the page shows the progress. Raises Conflict."""
    form = await read_form(request, visitor, NewModel)
    if form.value is None:
        return models_page(visitor, 400, load=form)
    await allow_loading(visitor.authority, form.value.model)
    visitor.services.afterwork.begin(_read(visitor.services, form.value.model))
    return go(visitor, PATH, f"Reading {form.value.model}. Planning starts as soon as it is done.")


async def _read(services: Services, reference: str) -> None:
    try:
        await read_model(services, reference)
    except (ModelError, Conflict) as error:  # the cluster's status shows it, too
        log.warning("model not read", model=reference, reason=str(error))
