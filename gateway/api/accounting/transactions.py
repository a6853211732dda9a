"""/accounting/v1/transactions: credits and debits of a user's accounts, newest first."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from gateway.admin.statement import COLUMNS, accounts_of, newest_lines, row
from gateway.api.accounting.dependencies import Form
from gateway.api.authority import AnyCaller
from gateway.app_state import Ledger
from gateway.parameters import OptionalText, sheet

router = APIRouter(prefix="/accounting/v1")

PAGE_MAX = 1_000

Before = Annotated[int | None, Query(ge=1, le=2**63 - 1)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]


@router.get("/transactions")
async def list_transactions(
    authority: AnyCaller,
    ledger: Ledger,
    user: OptionalText = None,
    organization: OptionalText = None,
    before: Before = None,
    limit: Limit = 100,
    format: Form = "json",  # noqa: A002 - the query's own name
) -> Response:
    """Show the caller's statement; for admins that of a user or an organization balance. `next` is the `before` of
    the next page.

    A pending line reserves credits without moving them; a void line releases them.
    """
    found = await ledger.look(
        lambda session: newest_lines(
            session, accounts_of(session, authority, user, organization), before, limit + 1
        )
    )
    rows, after = (
        [row(*line) for line in found[:limit]],
        found[limit - 1][1].transfer_seq if found[limit:] else None,
    )
    if format == "csv":
        return sheet("transactions", COLUMNS, rows, after)
    return JSONResponse({"data": [dict(zip(COLUMNS, each, strict=True)) for each in rows], "next": after})
