"""The statement: every transfer of an account, both sides, with the balance after it; in pages, and as CSV."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from accounting.money import format_usd
from gateway.admin.statement import COLUMNS, row
from gateway.app_state import Ledger
from gateway.console.access import Viewer
from gateway.console.forms import Form, check
from gateway.console.pages.balance.behind import lines_of
from gateway.console.pages.balance.lines import (
    KINDS,
    Line,
    LineFilter,
    accounts_of,
    codes_of,
    read_lines,
)
from gateway.console.pages.balance.whose import whose_of
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import page
from gateway.console.sheets import Rows, streamed_sheet

PAGE_ROWS = 50
_MORE_COLUMNS = ("debit", "credit", "balance")

Before = Annotated[int | None, Query(ge=1, le=2**63 - 1)]

router = APIRouter(prefix="/statement")


def _asked(request: Request) -> Form[LineFilter]:
    given = {name: [value] for name, value in request.query_params.items() if name in LineFilter.model_fields}
    return check(LineFilter, given)


Asked = Annotated[Form[LineFilter], Depends(_asked)]


@router.get("")
async def show(
    visitor: Viewer, ledger: Ledger, form: Asked, user: Plain = "", organization: Plain = "", before: Before = None
) -> Response:
    """Show the statement. Raises NotFound for an account of another owner."""
    whose = await whose_of(visitor, user, organization)
    known = await ledger.look(lambda session: accounts_of(session, whose))
    values: dict[str, Any] = {"form": form, "whose": whose, "accounts": known, "kinds": KINDS, "tab": "statement"}
    if form.value is None:
        return page("balance/statement.html", visitor, 400, lines=(), older="", sheet="", is_newest=True, **values)
    filters = form.value
    found = await ledger.look(lambda session: lines_of(session, visitor, whose, filters, before, PAGE_ROWS))
    older = whose.query(**filters.said(), before=found.before) if found.before else ""
    return page(
        "balance/statement.html",
        visitor,
        lines=found.lines,
        older=older,
        sheet=whose.query(**filters.said()),
        is_newest=before is None,
        **values,
    )


@router.get("/csv")
async def download(
    visitor: Viewer, ledger: Ledger, form: Asked, user: Plain = "", organization: Plain = ""
) -> Response:
    """Download the newest lines, sent while they are read. Raises RequestInvalid, NotFound."""
    whose, filters = await whose_of(visitor, user, organization), form.whole()
    codes = await ledger.look(lambda session: codes_of(session, whose, filters.account))

    async def read(before: int | None, limit: int) -> tuple[Rows, int | None]:
        look = partial(read_lines, codes=codes, filters=filters, before_seq=before, limit=limit)
        found = await ledger.look(look)
        return [_row(shown) for shown in found.lines], found.before

    return streamed_sheet("statement", (*COLUMNS, *_MORE_COLUMNS), read)


def _row(shown: Line) -> Sequence[object]:
    return (*row(shown.account, shown.line), shown.debit, shown.credit, format_usd(shown.balance_nano))
