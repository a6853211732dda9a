"""/accounting/v1/usage: requests and their cost, in groups, as JSON or CSV."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from gateway.admin.fields import as_ns
from gateway.admin.usage import LIMIT_MAX, usage_in
from gateway.api.accounting.dependencies import Form
from gateway.api.authority import AnyCaller
from gateway.app_state import Ledger
from gateway.parameters import OptionalText, Since, sheet

router = APIRouter(prefix="/accounting/v1")

By = Annotated[str, Query(max_length=100, description="Names between commas.")]
Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]


@router.get("/usage")
async def show_usage(
    authority: AnyCaller,
    ledger: Ledger,
    by: By = "day,model",
    since: Since = None,
    until: Since = None,
    scope: OptionalText = None,
    offset: Offset = 0,
    limit: Limit = LIMIT_MAX,
    format: Form = "json",  # noqa: A002 - the query's own name
) -> Response:
    """Show the caller's usage, by default of the last 30 days; for admins that of their own scopes."""
    since_ns, until_ns = as_ns(since), as_ns(until)
    found = await ledger.look(
        lambda session: usage_in(
            session, authority, by, scope, since_ns=since_ns, until_ns=until_ns, offset=offset, limit=limit
        )
    )
    if format == "csv":
        return sheet("usage", found.columns, [list(row.values()) for row in found.rows], found.next)
    return JSONResponse({"data": found.rows, "next": found.next})
