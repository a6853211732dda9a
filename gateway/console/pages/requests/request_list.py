"""The request log, newest first: filtered by the query string, in pages, live on the newest page, as CSV."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from accounting.money import format_usd
from gateway.admin.catalogue import model_names
from gateway.app_state import Lanes, RequestLog
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry, RequestPage
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import Form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.keys.key_list import rows_of
from gateway.console.pages.requests.wanted import LANES, FilterForm, as_shown, read_filters, visible_to
from gateway.console.renderer import page
from gateway.console.sheets import ROWS_MAX, Rows, streamed_sheet
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
async def show(request: Request, visitor: Viewer, log: RequestLog, lanes: Lanes, before: Before = "") -> Response:
    form, cursor = read_filters(request), _cursor(before)
    filters = form.value
    if filters is None:
        return await _page(visitor, lanes, form, None, before, status=400)
    within = filters.within(visible_to(visitor))
    values = await asyncio.to_thread(_look, visitor, log, within, cursor)
    return await _page(visitor, lanes, form, values, before)


@router.get("/live")
async def live(request: Request, visitor: Viewer, log: RequestLog) -> Response:
    """Stream the log. Raises RequestInvalid, RoleForbids."""
    filters = read_filters(request).value
    if filters is None:
        raise RequestInvalid("Invalid filter. Reload the page.")
    visible = visible_to(visitor)
    filters.within(visible)

    async def render() -> list[Region | Points]:
        found = await asyncio.to_thread(_look, visitor, log, filters.within(visible), None)
        values = found | {"filters": filters, "is_first": True, "form": None}
        return [Region("request-rows", "requests/rows.html", values)]

    return await live_response(visitor, LivePage(f"requests:{filters.query()}", render, _EVERY_S))


async def _page(
    visitor: Visitor,
    lanes: Lanes,
    form: Form[FilterForm],
    found: dict[str, Any] | None,
    before: str,
    status: int = 200,
) -> Response:
    return page(
        "requests/page.html",
        visitor,
        status,
        form=form,
        filters=form.value or FilterForm(),
        is_first=not before,
        keys=await asyncio.to_thread(_keys, visitor, form.text("key")),
        models=model_names(lanes),
        lanes=LANES,
        csv_rows=ROWS_MAX,
        **(found or {"rows": [], "names": {}, "next": None}),
    )


def _look(visitor: Visitor, log: RequestLog, filters: RequestFilter, before: Cursor | None) -> dict[str, Any]:
    found: RequestPage = log.page(filters, PAGE_ROWS, before, _STRETCHES, has_decisions=False)
    with visitor.directory.read() as session:
        names = names_of(session, sorted({row.key_id for row in found.rows if row.key_id}))
    rows = [as_shown(row, to_operator=visitor.is_operator) for row in found.rows]
    return {"rows": rows, "names": names, "next": found.next}


def _keys(visitor: Visitor, chosen: str) -> list[tuple[str, str]]:
    """Return the keys offered in the filter: the newest, and the selected one."""
    bound = visible_to(visitor).key_id
    rows = [visitor.directory.keys.row(bound)] if bound else rows_of(visitor, limit=_KEYS_SHOWN)
    named = [(row.key_id, f"{row.name} ({row.prefix}…)") for row in rows]
    if chosen and chosen not in dict(named):
        named.insert(0, (chosen, chosen))
    return [("", "any"), *named]


def _cursor(text: str) -> Cursor | None:
    """Return the cursor. Raises RequestInvalid."""
    return Cursor.parse(text) if text else None


_COLUMNS = (
    "time",
    "request",
    "key",
    "model",
    "answered_by",
    "kind",
    "lane",
    "backend",
    "status",
    "outcome",
    "prompt_tokens",
    "completion_tokens",
    "first_token_ms",
    "duration_ms",
    "charged_usd",
    "event",
    "reason",
    "error",
)


@router.get("/csv")
async def download(request: Request, visitor: Viewer, log: RequestLog) -> Response:
    """Download the newest rows, sent while they are read. Raises RequestInvalid, RoleForbids."""
    filters = read_filters(request).whole().within(visible_to(visitor))

    async def read(before: Cursor | None, limit: int) -> tuple[Rows, Cursor | None]:
        rows, before = await asyncio.to_thread(log.page, filters, limit, before)
        return [_row(as_shown(row, to_operator=visitor.is_operator)) for row in rows], before

    return streamed_sheet("requests", _COLUMNS, read)


def _row(entry: RequestEntry) -> list[object]:
    return [
        datetime.fromtimestamp(entry.started_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        entry.request_id,
        entry.key_id,
        entry.model,
        entry.served_model or entry.model,
        entry.kind,
        entry.lane,
        entry.backend,
        entry.status,
        entry.outcome,
        entry.prompt_tokens,
        entry.completion_tokens,
        entry.ttft_ms,
        entry.duration_ms,
        format_usd(entry.charge_nano),
        entry.event_seq,
        entry.reason,
        entry.error,
    ]
