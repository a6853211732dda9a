"""Budgets: every limit that applies to the visitor, and for admins all that they manage, with the usage."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from gateway.app_state import Ledger
from gateway.console.access import Viewer, Visitor
from gateway.console.pages.keys.figures import limit_lines
from gateway.console.pages.keys.limits import place_of
from gateway.console.renderer import page
from gateway.identity.quotas import scopes_of
from gateway.pages import page_at

PAGE_ROWS = 50

router = APIRouter(prefix="/budgets")

Start = Annotated[int, Query(ge=0, le=10**6)]


@router.get("")
async def show(visitor: Viewer, ledger: Ledger, start: Start = 0) -> Response:
    """Show a page of limits. Each limit needs a query of the usage rows, so the page size is bounded."""
    values = await ledger.look(lambda session: _look(session, visitor, start))
    return page(
        "balance/budgets.html",
        visitor,
        places=_places(visitor, values),
        tab="budgets",
        **values,
    )


def _places(visitor: Visitor, values: dict[str, Any]) -> dict[str, str]:
    """Return the page that changes each scope's limits; members see only pages of keys."""
    scopes = {line.quota.scope for line in (*values["own"], *values["others"])}
    return {scope: place_of(scope) for scope in scopes if visitor.is_manager or scope.startswith("key:")}


def _look(session: Session, visitor: Visitor, start: int) -> dict[str, Any]:
    """Return the visitor's limits, and a page of budgets that they may administer, the fullest of the page first."""
    caller, place = visitor.caller, None
    scopes: Sequence[str] = ()
    own = scopes_of(caller.user_id, caller.organization_id, caller.department, key_id=caller.key_id)
    if visitor.may_administer:
        quotas, within = visitor.directory.quotas, visitor.authority.within(None)
        scopes, place = page_at(
            quotas.scopes(within, "spend", offset=start, limit=PAGE_ROWS + 1), start, PAGE_ROWS
        )
    others = [line for line in limit_lines(session, scopes) if line.quota.measure == "spend"]
    return {
        "own": sorted(limit_lines(session, own), key=lambda line: line.quota.measure != "spend"),
        "others": sorted(others, key=lambda line: -line.percent),
        "start": start,
        "has_more": place is not None,
        "rows": PAGE_ROWS,
    }
