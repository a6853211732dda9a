"""Changes that operators make to models: aliases, prices, loading and unloading, and pool servers."""

import asyncio
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
import structlog
from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from gateway.admin import model_terms, pool
from gateway.admin.model_terms import MODELS_MAX, Name, NewAlias, NewPrice
from gateway.app_state import Afterwork, Lanes, PoolLane, RequestPaths
from gateway.console.access import Operator, Visitor
from gateway.console.forms import pressed, read_form, submit_form
from gateway.console.pages.models.overview import PATH, Sources, model_page, models_page
from gateway.console.pages.models.state import caller_of
from gateway.console.renderer import go
from gateway.dialects.model_loading import Upkeep
from gateway.identity.caller import Caller
from gateway.lanes.pool.members import Pool
from gateway.requests.model_loading import ModelLoading
from gateway.settings.pool import PoolBackend
from runtime.errors import NotFound, RequestInvalid, ServiceError
from runtime.request_ids import new_request_id

router = APIRouter(prefix=PATH)


def _names(texts: list[str]) -> list[str]:
    return [name for text in texts for each in text.split(",") if (name := each.strip())]


class Naming(NewAlias):
    """`model` is the model whose page the form was on; `models` is comma-separated."""

    model: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MODELS_MAX), BeforeValidator(_names)]


class Unnaming(BaseModel):
    model: Name
    alias: Name


class Unpricing(BaseModel):
    model: Name


@router.post("/alias")
async def set_alias(visitor: Operator, sources: Sources) -> Response:
    done, form = await submit_form(
        visitor, Naming, lambda new: model_terms.set_alias(visitor.authority, sources.terms, sources.lanes, new)
    )
    if done is None:
        return await model_page(visitor, sources, form.text("model"), 400, alias=form)
    return go(visitor, _place(form.text("model"), "names"), f"Alias {done.alias} set.")


@router.post("/alias/remove")
async def remove_alias(visitor: Operator, sources: Sources) -> Response:
    """Remove an alias. Raises NotFound, RequestInvalid."""
    gone = (await read_form(visitor, Unnaming)).whole()
    await model_terms.remove_alias(visitor.authority, sources.terms, gone.alias)
    place = PATH if gone.model == gone.alias else _place(gone.model, "names")
    return go(visitor, place, f"Alias {gone.alias} removed. The config file may still define it.")


@router.post("/price")
async def set_price(visitor: Operator, sources: Sources) -> Response:
    done, form = await submit_form(
        visitor, NewPrice, lambda new: model_terms.set_price(visitor.authority, sources.terms, sources.lanes, new)
    )
    if done is None:
        return await model_page(visitor, sources, form.text("model"), 400, price=form)
    return go(visitor, _place(done.model, "price"), "Price set. It applies from the next request on.")


@router.post("/price/remove")
async def remove_price(visitor: Operator, sources: Sources) -> Response:
    """Remove a price that was set. Raises NotFound, RequestInvalid."""
    gone = (await read_form(visitor, Unpricing)).whole()
    await model_terms.remove_price(visitor.authority, sources.terms, gone.model)
    return go(visitor, _place(gone.model, "price"), "The list price applies from the next request on.")


def _place(model: str, part: str) -> str:
    return f"{PATH}/of?model={quote(model, safe='')}#{part}"


log = structlog.get_logger(__name__)

# After this time the response no longer waits; the list shows the outcome.
_PATIENCE_S = 8.0


class Wish(BaseModel):
    """A model of the pool, by its public name."""

    model: Annotated[str, Field(max_length=256)]
    wanted: Literal["load", "unload"]


@router.post("/memory")
async def keep_or_put_away(
    visitor: Operator, lanes: Lanes, requests: RequestPaths, afterwork: Afterwork
) -> Response:
    form = await read_form(visitor, Wish)
    if form.value is None:
        return go(visitor, PATH, " ".join(form.errors.values()))
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    caller, address = caller_of(visitor, lanes), visitor.address
    afterwork.begin(_tell(requests.model_loading, caller, address, form.value, result))
    try:
        message = await asyncio.wait_for(asyncio.shield(result), _PATIENCE_S)
    except TimeoutError:
        message = f"{form.value.model} is still loading. Its row shows when it is ready."
    return go(visitor, PATH, message)


async def _tell(
    loading: ModelLoading, caller: Caller, address: str, wish: Wish, result: asyncio.Future[str]
) -> None:
    """Send the request that Ollama's clients use: a chat without a message."""
    body = msgspec.json.encode({"model": wish.model, "messages": [{"role": "user", "content": ""}]})
    upkeep = Upkeep(wish.wanted, wish.model, body, {}, 0 if wish.wanted == "unload" else None)
    message = f"{wish.model} {'loaded' if wish.wanted == 'load' else 'unloaded'}."
    try:
        await loading.look_after(caller, new_request_id(), upkeep, address)
    except ServiceError as error:
        message = error.message
        log.warning("model not loaded or unloaded", model=wish.model, wanted=wish.wanted, reason=message)
    if not result.done():
        result.set_result(message)


class Scan(BaseModel):
    """Hosts, addresses or small networks, and ports, separated by commas or spaces."""

    hosts: Annotated[str, Field(max_length=2000)] = ""
    ports: Annotated[str, Field(max_length=500, pattern=r"^[\d,\s]*$")] = ""
    mdns: bool = False

    def question(self) -> pool.ScanQuestion:
        """Return the query for the scan. Raises ValidationError."""
        hosts, ports = (text.replace(",", " ").split() for text in (self.hosts, self.ports))
        return pool.ScanQuestion(hosts=hosts, ports=[int(port) for port in ports], mdns=self.mdns)


@router.post("/servers")
async def add(visitor: Operator, sources: Sources) -> Response:
    added, form = await submit_form(
        visitor, PoolBackend, lambda backend: pool.add_backend(visitor.authority, sources.pool.pool, backend)
    )
    if added is None:
        return models_page(visitor, sources, 400, add=form)
    return go(visitor, f"{PATH}#servers", f"{added['name']} is {added['state']}. {added['note']}".strip())


@router.post("/servers/scan")
async def scan(visitor: Operator, sources: Sources) -> Response:
    form = await read_form(visitor, Scan)
    if form.value is None:
        return models_page(visitor, sources, 400, scan=form)
    try:
        seen = await pool.scan_hosts(visitor.authority, sources.pool, form.value.question())
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        message = "Too many hosts. Enter fewer." if name == "hosts" else "Enter fewer ports, from 1 to 65535."
        return models_page(visitor, sources, 400, scan=form.refused(message, name))
    except RequestInvalid as error:
        return models_page(visitor, sources, 400, scan=form.refused(error.message, error.param or "hosts"))
    return models_page(visitor, sources, scan=form, seen=seen)


@router.post("/servers/{name}/{what}")
async def change(visitor: Operator, lane: PoolLane, name: str, what: str) -> Response:
    """Drain, undrain or remove a server. Raises NotFound, RequestInvalid."""
    await pressed(visitor)
    return go(visitor, f"{PATH}#servers", await _change(visitor, lane.pool, name, what))


async def _change(visitor: Visitor, members: Pool, name: str, what: str) -> str:
    match what:
        case "drain":
            await pool.drain_backend(visitor.authority, members, name)
            return f"{name} is draining and gets no new requests."
        case "undrain":
            await pool.drain_backend(visitor.authority, members, name, undo=True)
            return f"{name} accepts requests again."
        case "remove":
            await pool.remove_backend(visitor.authority, members, name)
            return f"{name} was removed from the pool. Running requests continue."
        case _:
            raise NotFound("Unknown action. Use drain, undrain or remove.")
