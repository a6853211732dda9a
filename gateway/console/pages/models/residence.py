"""Models into memory and out of it: at backends that can be told, and in a cluster that has none yet."""

import asyncio
from typing import Annotated, Literal

import msgspec
import structlog
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cluster.errors import ModelError
from gateway.api.advice import NewModel, allow_loading, read_model
from gateway.console.access import Operator, Visitor
from gateway.console.forms import read_form
from gateway.console.pages.models.overview import PATH, models_page
from gateway.console.pages.models.state import caller_of
from gateway.console.rendering import go
from gateway.dialects.upkeep import Upkeep
from gateway.errors import Conflict, GatewayError
from gateway.journey.upkeep import look_after
from gateway.request_ids import new_request_id
from gateway.services import Services

log = structlog.get_logger(__name__)

# Whoever waits longer sees in the list what has become of it.
_PATIENCE_S = 8.0

router = APIRouter(prefix=PATH)


class Wish(BaseModel):
    """A model of the pool, by the name that callers use."""

    model: Annotated[str, Field(max_length=256)]
    wanted: Literal["load", "unload"]


@router.post("/memory")
async def keep_or_put_away(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Wish)
    if form.value is None:
        return go(visitor, PATH, " ".join(form.errors.values()))
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    visitor.services.afterwork.begin(_tell(visitor, form.value, told))
    try:
        said = await asyncio.wait_for(asyncio.shield(told), _PATIENCE_S)
    except TimeoutError:
        said = f"{form.value.model} is still on its way; its row says when it is there."
    return go(visitor, PATH, said)


async def _tell(visitor: Visitor, wish: Wish, told: asyncio.Future[str]) -> None:
    """As Ollama's clients ask for it: a chat without a question."""
    body = msgspec.json.encode({"model": wish.model, "messages": [{"role": "user", "content": ""}]})
    upkeep = Upkeep(wish.wanted, wish.model, body, {}, 0 if wish.wanted == "unload" else None)
    said = f"{wish.model} is {'in' if wish.wanted == 'load' else 'out of'} memory."
    try:
        await look_after(visitor.services, caller_of(visitor), new_request_id(), upkeep, visitor.address)
    except GatewayError as error:
        said = error.message
        log.warning("model not told", model=wish.model, wanted=wish.wanted, reason=said)
    if not told.done():
        told.set_result(said)


@router.post("/cluster")
async def load_into_cluster(request: Request, visitor: Operator) -> Response:
    """Pulled, read and checked in the background: the page shows how far it is. Raises Conflict."""
    form = await read_form(request, visitor, NewModel)
    if form.value is None:
        return models_page(visitor, 400, load=form)
    await allow_loading(visitor.authority, form.value.model)
    visitor.services.afterwork.begin(_read(visitor.services, form.value.model))
    return go(visitor, PATH, f"{form.value.model} is being read; it is planned as soon as that is done.")


async def _read(services: Services, reference: str) -> None:
    try:
        await read_model(services, reference)
    except (ModelError, Conflict) as error:  # The cluster's status says so, too.
        log.warning("model not read", model=reference, reason=str(error))
