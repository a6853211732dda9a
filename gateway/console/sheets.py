"""CSV files that are sent while their rows are read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from gateway.billing.sheets import as_csv

ROWS_MAX = 50_000
"""Row limit of a file."""
_ROWS_AT_ONCE = 1_000
_LOOKS_MAX = 1_000
_LASTS_S = 300.0

Rows = Sequence[Sequence[object]]


def streamed_sheet(
    name: str, columns: Sequence[str], read: Callable[[Any, int], Awaitable[tuple[Rows, Any]]]
) -> Response:
    """Return the file. `read` gets a place (None at first) and a limit; it returns rows and the next place or None.

    After `_LASTS_S` the transfer is aborted: a file that simply ended would look complete.
    """

    async def lines() -> AsyncIterator[str]:
        header, left, place = as_csv(columns, ()), ROWS_MAX, None
        ends_s = asyncio.get_running_loop().time() + _LASTS_S
        yield header
        for _ in range(_LOOKS_MAX):
            # Only around the reading: while a piece is sent, a timeout would cancel the request instead.
            async with asyncio.timeout_at(ends_s):
                rows, place = await read(place, min(left, _ROWS_AT_ONCE))
            yield as_csv(columns, rows).removeprefix(header)
            left -= len(rows)
            if place is None or not left:
                return

    headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
    return StreamingResponse(lines(), headers=headers, media_type="text/csv; charset=utf-8")
