"""Overview: current activity, the last thirty days, and alerts.

Modules:
    values  Values that the overview shows at one moment, read from the running gateway: once, and live
"""

from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel

from gateway.app_state import Pauses, bundle, held
from gateway.console.access import Operator, Viewer, Visitor
from gateway.console.forms import read_form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.overview.values import (
    Sources,
    Span,
    Whose,
    can_pause,
    charts,
    common,
    common_regions,
    credit_of,
    overview,
    own_regions,
    part_within,
    personal,
    points,
    scope_of,
    users,
)
from gateway.console.renderer import go, page
from gateway.console.shared_values import Shared
from gateway.routing.pauses import Pausable
from runtime.errors import RequestInvalid

_PATH = "/console"
# The visitor's own figures change with their own requests.
_WORDS: dict[Pausable, str] = {"cloud": "The cloud lane", "market": "The market lane", "selling": "Selling"}
_EVERY_S = {"instance": 2.0, "own": 5.0}
# Data younger than this share of the interval is reused for the next viewer.
_SHARED = 0.9
_CREDIT_S = 4.5

router = APIRouter(prefix=_PATH)

AllSources = Annotated[Sources, bundle(Sources)]
SharedValues = Annotated[Shared, held("shared")]


class Switch(BaseModel):
    """The lane or feature to pause or resume."""

    name: Pausable


@router.get("")
async def show(visitor: Viewer, sources: AllSources, span: Span = "quarter", whose: Whose = "") -> Response:
    values = await overview(visitor, sources, whose)
    values["users"] = await users(visitor, values["scope"])
    if values["scope"].has_machines:
        values |= charts(sources.load, span) | {"switches": can_pause(sources)}
    return page("overview/page.html", visitor, **values)


@router.get("/overview/live")
async def live(
    visitor: Viewer, sources: AllSources, shared: SharedValues, span: Span = "quarter", whose: Whose = ""
) -> Response:
    """Stream the overview. It includes credits, so each user has a stream; shared parts are rendered once."""
    scope = scope_of(visitor)
    every_s = _EVERY_S["instance" if scope.has_machines else "own"]

    async def render() -> list[Region | Points]:
        part = await part_within(visitor, whose)

        async def draw() -> tuple[dict[str, Any], list[Region]]:
            values = await common(sources, scope, part)
            return values, common_regions(values)

        async def draw_points() -> list[Points]:
            return points(sources.load, span)

        key = f"overview {scope.name} {part}"
        values, regions = await shared.get(key, every_s * _SHARED, draw)
        drawn = (
            await shared.get(f"overview charts {span}", every_s * _SHARED, draw_points)
            if scope.has_machines
            else []
        )
        name = f"credits of {visitor.caller.user_id}"
        credit = await shared.get(name, _CREDIT_S, lambda: credit_of(visitor, sources.ledger, sources.usage))
        return [*own_regions(values | personal(values, credit)), *regions, *drawn]

    name = f"overview:{scope.name}:{visitor.caller.user_id}:{span}:{whose}"
    return await live_response(visitor, LivePage(name, render, every_s))


@router.post("/overview/pause")
async def pause(visitor: Operator, pauses: Pauses) -> Response:
    """Stop buying on a lane, or stop selling."""
    name = await _named(visitor)
    await pauses.pause(name, visitor.actor)
    return go(visitor, _PATH, f"{_WORDS[name]} is paused until you resume it.")


@router.post("/overview/resume")
async def resume(visitor: Operator, pauses: Pauses) -> Response:
    name = await _named(visitor)
    await pauses.resume(name, visitor.actor)
    return go(visitor, _PATH, f"{_WORDS[name]} is resumed.")


async def _named(visitor: Visitor) -> Pausable:
    """Return the name of the switch. Raises RequestInvalid, RoleForbids."""
    form = await read_form(visitor, Switch)
    if form.value is None:
        raise RequestInvalid(f"name: {form.errors.get('name', 'choose what to pause or resume')}", param="name")
    return form.value.name


__all__: list[Any] = ["router"]
