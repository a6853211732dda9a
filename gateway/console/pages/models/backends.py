"""Pool servers: adding, scanning, draining, removing."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError

from gateway.admin import pool
from gateway.console.access import Operator, Visitor
from gateway.console.forms import pressed, read_form, submit
from gateway.console.pages.models.overview import PATH, models_page
from gateway.console.renderer import go
from gateway.settings.pool import PoolBackend
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix=f"{PATH}/servers")


class Scan(BaseModel):
    """Hosts, addresses or small networks, and ports, separated by commas or spaces."""

    hosts: Annotated[str, Field(max_length=2000)] = ""
    ports: Annotated[str, Field(max_length=500, pattern=r"^[\d,\s]*$")] = ""
    mdns: bool = False

    def question(self) -> pool.ScanQuestion:
        """Return the query for the scan. Raises ValidationError."""
        hosts, ports = (text.replace(",", " ").split() for text in (self.hosts, self.ports))
        return pool.ScanQuestion(hosts=hosts, ports=[int(port) for port in ports], mdns=self.mdns)


@router.post("")
async def add(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, PoolBackend)
    added, form = await submit(form, lambda backend: pool.add_backend(visitor.authority, backend))
    if added is None:
        return models_page(visitor, 400, add=form)
    return go(visitor, f"{PATH}#servers", f"{added['name']} is {added['state']}. {added['note']}".strip())


@router.post("/scan")
async def scan(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Scan)
    if form.value is None:
        return models_page(visitor, 400, scan=form)
    try:
        seen = await pool.scan_hosts(visitor.authority, form.value.question())
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        message = "Too many hosts. Enter fewer." if name == "hosts" else "Enter fewer ports, from 1 to 65535."
        return models_page(visitor, 400, scan=form.refused(message, name))
    except RequestInvalid as error:
        return models_page(visitor, 400, scan=form.refused(error.message, error.param or "hosts"))
    return models_page(visitor, scan=form, seen=seen)


@router.post("/{name}/{what}")
async def change(request: Request, visitor: Operator, name: str, what: str) -> Response:
    """Drain, undrain or remove a server. Raises NotFound, RequestInvalid."""
    await pressed(request, visitor)
    return go(visitor, f"{PATH}#servers", await _change(visitor, name, what))


async def _change(visitor: Visitor, name: str, what: str) -> str:
    match what:
        case "drain":
            await pool.drain_backend(visitor.authority, name)
            return f"{name} is draining and gets no new requests."
        case "undrain":
            await pool.drain_backend(visitor.authority, name, undo=True)
            return f"{name} accepts requests again."
        case "remove":
            await pool.remove_backend(visitor.authority, name)
            return f"{name} was removed from the pool. Running requests continue."
        case _:
            raise NotFound("Unknown action. Use drain, undrain or remove.")
