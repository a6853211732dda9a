"""Budgets: every limit that applies to the visitor, and for admins all that they manage, with the usage."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from gateway.console.access import Viewer, Visitor
from gateway.console.pages.keys.figures import LimitLine, limit_lines
from gateway.console.pages.keys.limits import KINDS, place_of
from gateway.console.renderer import page
from gateway.identity.quotas import scopes_of

PAGE_ROWS = 50

router = APIRouter(prefix="/budgets")

Start = Annotated[int, Query(ge=0, le=10**6)]


@router.get("")
async def show(visitor: Viewer, start: Start = 0) -> Response:
    """Show a page of limits. Each limit needs a query of the usage rows, so the page size is bounded."""
    values = await visitor.services.ledger.look(lambda session: _look(session, visitor, start))
    return page(
        "balance/budgets.html",
        visitor,
        kinds=dict(KINDS),
        places=_places(visitor, values),
        tab="budgets",
        **values,
    )


def _places(visitor: Visitor, values: dict[str, Any]) -> dict[str, str]:
    """Return the page that changes each scope's limits; members see only pages of keys."""
    scopes = {line.quota.scope for line in (*values["own"], *values["others"])}
    return {scope: place_of(scope) for scope in scopes if visitor.is_manager or scope.startswith("key:")}


def _look(session: Session, visitor: Visitor, start: int) -> dict[str, Any]:
    caller = visitor.caller
    own = scopes_of(caller.user_id, caller.organization_id, caller.department, key_id=caller.key_id)
    lines = limit_lines(session, own)
    return {
        "own": sorted(lines, key=lambda line: line.quota.measure != "spend"),
        "others": _others(session, visitor, start),
        "start": start,
        "has_more": _has_more(visitor, start),
        "rows": PAGE_ROWS,
    }


def _others(session: Session, visitor: Visitor, start: int) -> list[LimitLine]:
    """Return spending limits of all that the visitor may administer, the fullest of the page first."""
    scopes = _scopes(visitor, start, PAGE_ROWS)
    found = [line for line in limit_lines(session, scopes) if line.quota.measure == "spend"]
    return sorted(found, key=lambda line: -line.percent)


def _has_more(visitor: Visitor, start: int) -> bool:
    return bool(_scopes(visitor, start + PAGE_ROWS, 1))


def _scopes(visitor: Visitor, start: int, limit: int) -> list[str]:
    if not visitor.may_administer:
        return []
    return visitor.directory.quotas.scopes(visitor.authority.within(None), "spend", offset=start, limit=limit)
