"""What routes and console pages share of HTTP: parameters of addresses, and pages as CSV files."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import AwareDatetime

from gateway.admin.fields import TEXT
from gateway.billing.sheets import as_csv
from gateway.pages import CURSOR_MAX, PAGE_MAX

Named = Annotated[str, Path(min_length=1, max_length=200, pattern=TEXT)]
OptionalText = Annotated[str | None, Query(max_length=200, pattern=TEXT)]
PageCursor = Annotated[str | None, Query(max_length=CURSOR_MAX, description="`next` of the previous page.")]
PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Since = Annotated[AwareDatetime | None, Query(description="RFC 3339, with its offset from UTC.")]


def sheet(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], after: int | None) -> Response:
    """Return a page as a CSV file; the header x-next has the offset of the next page, if there is one."""
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    if after is not None:
        headers["x-next"] = str(after)
    return Response(as_csv(columns, rows), media_type="text/csv; charset=utf-8", headers=headers)
