"""Keys: their owners, usage this month, and usage of their limits; in pages, and live."""

import asyncio
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field, StringConstraints, model_validator

from gateway.console.access import Viewer, Visitor
from gateway.console.live import live_parts
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.keys.figures import key_lines
from gateway.console.renderer import page
from gateway.identity import key_queries
from gateway.identity.key_queries import ALL
from gateway.identity.key_rows import KeyRow
from gateway.identity.keys import ROWS_MAX
from gateway.pages import CURSOR_MAX, Cursor, page_of
from gateway.settings.base import LaneName, Privacy

PAGE_ROWS = 50
# Each key's spending is summed again at this interval.
_EVERY_S = 10.0

router = APIRouter(prefix="/console/keys")

Which = Literal["valid", "ended", "all"]
_OPENS: dict[Which, bool | None] = {"valid": True, "ended": False, "all": None}


class KeyFilter(BaseModel):
    """Selects keys; every part narrows the selection. `before` is the cursor from the previous page."""

    which: Which = "valid"
    text: Annotated[Plain, StringConstraints(strip_whitespace=True)] = ""
    lane: LaneName | None = None
    user: Plain | None = None
    organization: Plain | None = None
    privacy: Privacy | None = None
    before: Annotated[str, Field(max_length=CURSOR_MAX)] = ""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if value}

    def query(self, **changed: object) -> str:
        """Return the query string, with `changed` values replaced."""
        update = {name: str(value) for name, value in changed.items()}
        found = self.model_copy(update=update).model_dump(exclude_defaults=True)
        return f"?{urlencode(found)}" if found else ""

    def as_key_filter(self) -> key_queries.KeyFilter:
        return key_queries.KeyFilter(
            user_id=self.user,
            organization_id=self.organization,
            lane=self.lane,
            privacy=self.privacy,
            text=self.text,
            opens=_OPENS[self.which],
        )


def _filter(filters: Annotated[KeyFilter, Query()]) -> KeyFilter:
    """Return the filter. Raises RequestInvalid."""
    if filters.before:
        Cursor.parse(filters.before)
    return filters


Filters = Annotated[KeyFilter, Depends(_filter)]


@router.get("")
async def show_keys(visitor: Viewer, filters: Filters) -> Response:
    return page("keys/list.html", visitor, tab="keys", **await _values(visitor, filters))


@router.get("/live")
async def live(visitor: Viewer, filters: Filters) -> Response:
    key = f"keys:{visitor.caller.user_id}:{filters.query()}"
    return await live_parts(
        visitor, key, _EVERY_S, {"key-table": "keys/table.html"}, lambda: _values(visitor, filters)
    )


async def _values(visitor: Visitor, filters: KeyFilter) -> dict[str, Any]:
    return await asyncio.to_thread(_look, visitor, filters)


def _look(visitor: Visitor, filters: KeyFilter) -> dict[str, Any]:
    """Return one page of the keys that the visitor may see, newest first."""
    before = Cursor.parse(filters.before) if filters.before else None
    shown, place = page_of(rows_of(visitor, filters.as_key_filter(), before, PAGE_ROWS + 1), PAGE_ROWS)
    names = visitor.directory.users.names(sorted({row.user_id for row in shown}))
    with visitor.directory.read() as session:
        lines = key_lines(session, shown, names)
    return {
        "filters": filters,
        "lines": lines,
        "is_manager": visitor.is_manager,
        "found": visitor.directory.keys.count(*_bounds(visitor), filters.as_key_filter()),
        "has_any": bool(lines) or bool(rows_of(visitor, limit=1)),
        "next": place,
    }


def rows_of(
    visitor: Visitor, key_filter: key_queries.KeyFilter = ALL, before: Cursor | None = None, limit: int = ROWS_MAX
) -> list[KeyRow]:
    """Return all keys for operators, an organization's for its admins, else the visitor's own; newest first."""
    return visitor.directory.keys.rows(*_bounds(visitor), key_filter, before=before, limit=limit)


def opening_rows(visitor: Visitor, limit: int = ROWS_MAX) -> list[KeyRow]:
    """Return only the active keys."""
    return rows_of(visitor, key_queries.KeyFilter(opens=True), limit=limit)


def _bounds(visitor: Visitor) -> tuple[str | None, str | None]:
    """Return the organization and the user to which the visitor's view of keys is limited; None means all."""
    return (visitor.authority.within(None), None) if visitor.is_manager else (None, visitor.caller.user_id)
