"""The request log, newest first: filtered by the query string, in pages, and live on the newest page."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestPage
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import Form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.keys.key_list import rows_of
from gateway.console.pages.requests.sheet import ROWS_MAX
from gateway.console.pages.requests.wanted import LANES, FilterForm, as_shown, read_filters, visible_to
from gateway.console.renderer import page
from gateway.identity.key_queries import names_of
from gateway.pages import Cursor
from runtime.errors import RequestInvalid

PAGE_ROWS = 50
_KEYS_SHOWN = 300
_STRETCHES = 5
_EVERY_S = 2.0

router = APIRouter(prefix="/console/requests")

Before = Annotated[str, Query(max_length=600, description="The cursor from the previous page.")]


@router.get("")
async def show(request: Request, visitor: Viewer, before: Before = "") -> Response:
    form, cursor = read_filters(request), _cursor(before)
    filters = form.value
    if filters is None:
        return await _page(visitor, form, None, before, status=400)
    within = filters.within(visible_to(visitor))
    values = await asyncio.to_thread(_look, visitor, within, cursor)
    return await _page(visitor, form, values, before)


@router.get("/live")
async def live(request: Request, visitor: Viewer) -> Response:
    """Stream the log. Raises RequestInvalid, RoleForbids."""
    filters = read_filters(request).value
    if filters is None:
        raise RequestInvalid("Invalid filter. Reload the page.")
    visible = visible_to(visitor)
    filters.within(visible)

    async def render() -> list[Region | Points]:
        found = await asyncio.to_thread(_look, visitor, filters.within(visible), None)
        values = found | {"filters": filters, "is_first": True, "form": None}
        return [Region("request-rows", "requests/rows.html", values)]

    return await live_response(request, visitor, LivePage(f"requests:{filters.query()}", render, _EVERY_S))


async def _page(
    visitor: Visitor, form: Form[FilterForm], found: dict[str, Any] | None, before: str, status: int = 200
) -> Response:
    return page(
        "requests/page.html",
        visitor,
        status,
        form=form,
        filters=form.value or FilterForm(),
        is_first=not before,
        keys=await asyncio.to_thread(_keys, visitor, form.text("key")),
        models=sorted({model for lane in visitor.services.lanes.values() for model in lane.models()}),
        lanes=LANES,
        csv_rows=ROWS_MAX,
        **(found or {"rows": [], "names": {}, "next": None}),
    )


def _look(visitor: Visitor, filters: RequestFilter, before: Cursor | None) -> dict[str, Any]:
    services = visitor.services
    found: RequestPage = services.request_log.page(filters, PAGE_ROWS, before, _STRETCHES, has_decisions=False)
    with services.directory.read() as session:
        names = names_of(session, sorted({row.key_id for row in found.rows if row.key_id}))
    rows = [as_shown(row, to_operator=visitor.is_operator) for row in found.rows]
    return {"rows": rows, "names": names, "next": found.next}


def _keys(visitor: Visitor, chosen: str) -> list[tuple[str, str]]:
    """Return the keys offered in the filter: the newest, and the selected one."""
    bound = visible_to(visitor).key_id
    rows = [visitor.services.keys.row(bound)] if bound else rows_of(visitor, limit=_KEYS_SHOWN)
    named = [(row.key_id, f"{row.name} ({row.prefix}…)") for row in rows]
    if chosen and chosen not in dict(named):
        named.insert(0, (chosen, chosen))
    return [("", "any"), *named]


def _cursor(text: str) -> Cursor | None:
    """Return the cursor. Raises RequestInvalid."""
    return Cursor.parse(text) if text else None
