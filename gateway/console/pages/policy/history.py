"""The audit log: who changed what, newest first, with old and new values."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response

from gateway.console.access import Manager
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.keys.limits import place_of
from gateway.console.renderer import page
from gateway.identity.audit import Entry, Filter
from gateway.identity.key_queries import names_of

router = APIRouter(prefix="/history")

PAGE_ROWS = 50
_FIELDS_SHOWN = 6
_TEXT_SHOWN = 80
# Already shown by the line itself, or not useful to users.
_LEFT_OUT = ("created_ns", "key_id", "prefix", "organization_id", "scope", "user_id")


@dataclass(frozen=True, slots=True)
class Change:
    """A changed field in words; empty if there was no value."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Line:
    """An entry for display: `target` by its display name, `place` is the target's page if there is one."""

    entry: Entry
    changes: tuple[Change, ...]
    target: str
    place: str


@router.get("")
async def show_history(
    visitor: Manager,
    action: Plain = "",
    actor: Plain = "",
    target: Plain = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    filters = Filter(visitor.authority.within(None), action or None, actor or None, target or None)

    def look() -> tuple[list[Entry], dict[str, str]]:
        found = visitor.directory.audit.entries(filters, before_seq=before, limit=PAGE_ROWS + 1)
        kinds = (entry.target.partition(":") for entry in found)
        ids = sorted({name for kind, _, name in kinds if kind == "key"})
        with visitor.directory.read() as session:
            return found, {f"key:{key_id}": f"key {name}" for key_id, name in names_of(session, ids).items()}

    found, names = await asyncio.to_thread(look)
    shown = found[:PAGE_ROWS]
    query = {"action": action, "actor": actor, "target": target}
    older = {name: value for name, value in query.items() if value} | {
        "before": str(shown[-1].seq) if shown else ""
    }
    return page(
        "policy/history.html",
        visitor,
        lines=[line_of(entry, names) for entry in shown],
        query=query,
        is_newest=before is None,
        older=urlencode(older) if len(found) > PAGE_ROWS else "",
        tab="history",
    )


def line_of(entry: Entry, names: Mapping[str, str]) -> Line:
    """Return the line. Machines and money have pages elsewhere; removed targets have none."""
    kind, _, name = entry.target.partition(":")
    has_place = kind in ("user", "organization", "team", "key") and entry.action != "user.remove"
    target = names.get(entry.target, entry.target.replace(":", " ", 1))
    changes = changes_of(entry.before, entry.after)
    return Line(entry, changes, target, place_of(entry.target) if has_place and name else "")


def changes_of(before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[Change, ...]:
    """Return the changed fields with their old and new values. At most a few fields."""
    old, new = before or {}, after or {}
    fields = [name for name in {**old, **new} if old.get(name) != new.get(name) and name not in _LEFT_OUT]
    changes = [Change(_words(name), _text(name, old.get(name)), _text(name, new.get(name))) for name in fields]
    return tuple(change for change in changes if change.before or change.after)[:_FIELDS_SHOWN]


def _words(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")


def _text(name: str, value: Any) -> str:
    """Return a value as text; empty for empty, false and missing values."""
    if not value:
        return ""
    if value is True:
        return "yes"
    if name.endswith("_ns") and isinstance(value, int):
        return datetime.fromtimestamp(value / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…"
