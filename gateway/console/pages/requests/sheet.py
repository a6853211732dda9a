"""The filtered rows as a CSV file, sent while they are read."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from accounting.money import format_usd
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry
from gateway.billing.sheets import as_csv
from gateway.console.access import Viewer, Visitor
from gateway.console.pages.requests.wanted import as_shown, read_filters, visible_to
from gateway.pages import Cursor
from runtime.errors import RequestInvalid

ROWS_MAX = 50_000
_ROWS_AT_ONCE = 500
_LOOKS_MAX = 1000
_LASTS_S = 300.0
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

router = APIRouter(prefix="/console/requests")


@router.get("/csv")
async def download(request: Request, visitor: Viewer) -> Response:
    """Download the newest `ROWS_MAX` rows at most. Raises RequestInvalid, RoleForbids."""
    form = read_filters(request)
    if form.value is None:
        name, sentence = next(iter(form.errors.items()))
        raise RequestInvalid(f"{name}: {sentence}", param=name)
    filters = form.value.within(visible_to(visitor))
    headers = {"content-disposition": 'attachment; filename="requests.csv"', "cache-control": "no-store"}
    lines = _lines(visitor, filters)
    return StreamingResponse(lines, headers=headers, media_type="text/csv; charset=utf-8")


async def _lines(visitor: Visitor, filters: RequestFilter) -> AsyncIterator[str]:
    log = visitor.services.request_log
    header = as_csv(_COLUMNS, ())
    yield header
    left: int = ROWS_MAX
    before: Cursor | None = None
    ends_s = time.monotonic() + _LASTS_S
    for _ in range(_LOOKS_MAX):
        rows, before = await asyncio.to_thread(log.page, filters, min(left, _ROWS_AT_ONCE), before)
        if rows:
            yield as_csv(
                _COLUMNS, (_row(as_shown(row, to_operator=visitor.is_operator)) for row in rows)
            ).removeprefix(header)
        left -= len(rows)
        if before is None or not left:
            return
        if time.monotonic() > ends_s:
            # Abort the transfer: a file that simply ended would look complete.
            raise TimeoutError(f"the rows took longer than {_LASTS_S:.0f} s")


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
