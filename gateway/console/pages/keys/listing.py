"""Keys: who has which, what they did this month, and how much of their limits is gone; live."""

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.console.access import Viewer, Visitor
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.keys.figures import OPENS, KeyState, key_lines, state_of
from gateway.console.rendering import page
from gateway.identity.key_rows import KeyRow
from gateway.identity.people import Person
from gateway.settings.base import LaneName, Privacy

PAGE_ROWS = 50
# What each key spent is summed up anew.
_EVERY_S = 10.0

router = APIRouter(prefix="/console/keys")

Which = Literal["valid", "ended", "all"]


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys are shown; every part narrows. `text` is looked for in name, prefix, id and owner."""

    which: Which = "valid"
    text: str = ""
    lane: LaneName | None = None
    user: str | None = None
    organization: str | None = None
    privacy: Privacy | None = None
    start: int = 0

    def query(self, **changed: object) -> str:
        """As it stands in an address; what changes is named."""
        usual = asdict(KeyFilter())
        found = {name: value for name, value in (asdict(self) | changed).items() if value != usual[name]}
        return f"?{urlencode(found)}" if found else ""

    def passes(self, row: KeyRow, state: KeyState) -> bool:
        if self.which != "all" and (state in OPENS) != (self.which == "valid"):
            return False
        if self.lane is not None and self.lane not in row.lanes:
            return False
        for wanted, found in (
            (self.user, row.user_id),
            (self.organization, row.organization_id),
            (self.privacy, row.terms.privacy),
        ):
            if wanted not in (None, found):
                return False
        words = f"{row.name} {row.prefix} {row.key_id} {row.user_id}".casefold()
        return self.text.casefold() in words


def _filter(
    which: Which = "valid",
    text: Plain = "",
    lane: LaneName | Literal[""] | None = None,
    user: Plain | None = None,
    organization: Plain | None = None,
    privacy: Privacy | None = None,
    start: Annotated[int, Query(ge=0, le=10**6)] = 0,
) -> KeyFilter:
    return KeyFilter(which, text.strip(), lane or None, user or None, organization or None, privacy, start)


Wanted = Annotated[KeyFilter, Depends(_filter)]


@router.get("")
async def show_keys(visitor: Viewer, wanted: Wanted) -> Response:
    return page("keys/list.html", visitor, wanted=wanted, tab="keys", **await _values(visitor, wanted))


@router.get("/live")
async def live(request: Request, visitor: Viewer, wanted: Wanted) -> Response:
    async def render() -> list[Region | Points]:
        values = await _values(visitor, wanted)
        return [Region("key-table", "keys/table.html", values | {"wanted": wanted})]

    key = f"keys:{visitor.caller.user_id}:{wanted.query()}"
    return await live_response(request, visitor, LivePage(key, render, _EVERY_S))


async def _values(visitor: Visitor, wanted: KeyFilter) -> dict[str, Any]:
    return await asyncio.to_thread(_look, visitor, wanted)


def _look(visitor: Visitor, wanted: KeyFilter) -> dict[str, Any]:
    """One page of the keys that the visitor may see, newest first."""
    now_ns, rows, people = time.time_ns(), rows_of(visitor), names_of(visitor)
    found = [row for row in reversed(rows) if wanted.passes(row, state_of(row, people, now_ns))]
    shown = found[wanted.start : wanted.start + PAGE_ROWS]
    with visitor.directory.read() as session:
        lines = key_lines(session, shown, people)
    after = wanted.start + PAGE_ROWS
    return {
        "lines": lines,
        "is_manager": visitor.is_manager,
        "found": len(found),
        "has_any": bool(rows),
        "next_start": after if len(found) > after else None,
    }


def rows_of(visitor: Visitor) -> list[KeyRow]:
    """Everybody's keys for the house, an organization's for its admins, one's own for all others."""
    if visitor.is_manager:
        return visitor.services.keys.rows(visitor.authority.within(None))
    return visitor.services.keys.rows(user_id=visitor.caller.user_id)


def opening_rows(visitor: Visitor) -> list[KeyRow]:
    """Those of the keys that open something just now."""
    now_ns, people = time.time_ns(), names_of(visitor)
    return [row for row in rows_of(visitor) if state_of(row, people, now_ns) in OPENS]


def people_of(visitor: Visitor) -> list[Person]:
    """Whom the visitor may see, of those who are here."""
    people = visitor.directory.people
    if visitor.is_manager:
        return people.people(visitor.authority.within(None))
    return [people.person(visitor.caller.user_id)]


def names_of(visitor: Visitor) -> dict[str, str]:
    return {person.user_id: person.name for person in people_of(visitor)}
