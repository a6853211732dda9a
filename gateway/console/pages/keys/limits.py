"""Limits of keys, users, teams and organizations: set and removed."""

from fastapi import APIRouter, Response

from gateway.admin.limits import LimitName, remove_limit, set_limit
from gateway.console.access import Manager, Visitor
from gateway.console.browser import own_path
from gateway.console.forms import Form, submit_to
from gateway.console.pages.keys.fields import LimitForm, Plain
from gateway.console.pages.keys.figures import METRICS
from gateway.console.renderer import go, page

router = APIRouter(prefix="/limits")


@router.get("/new")
async def ask(visitor: Manager, scope: Plain = "", organization: Plain = "", team: Plain = "") -> Response:
    """Show the form for a limit of a key, user, team or organization. Raises NotFound for an unknown scope."""
    if team:
        scope = f"team:{organization}/{team.strip()}"
    return _page(visitor, scope, Form.showing(scope=scope, kind="spend month"))


@router.post("/new")
async def set_one(visitor: Manager, scope: Plain) -> Response:
    _, form = await submit_to(visitor, LimitForm, set_limit)
    if form.value is None:
        return _page(visitor, scope, form, 400)
    return go(visitor, place_of(scope), "Limit set.")


@router.post("/remove")
async def remove_one(visitor: Manager) -> Response:
    _, form = await submit_to(visitor, LimitName, remove_limit)
    scope = form.text("scope")
    if form.value is None:
        return _page(visitor, scope, Form(errors=form.errors, given={"scope": [scope]}), 400)
    return go(visitor, place_of(scope), "Limit removed.")


def place_of(scope: str) -> str:
    """Return the page that shows a scope's limits."""
    kind, _, name = scope.partition(":")
    if kind == "team":
        kind, name = "organization", name.partition("/")[0]
    places = {"key": "key", "user": "users", "organization": "organizations"}
    return own_path(f"/console/keys/{places[kind]}/{name}") if kind in places else "/console/keys"


def _page(visitor: Visitor, scope: str, form: Form[LimitForm], status: int = 200) -> Response:
    # A scope of another organization gives the same error as one that does not exist.
    visitor.authority.over(visitor.directory.quotas.organization_of(scope), scope.replace(":", " ", 1))
    return page(
        "keys/limit.html",
        visitor,
        status,
        form=form,
        scope=scope,
        kinds=METRICS.items(),
        back=place_of(scope),
        tab="keys",
    )
