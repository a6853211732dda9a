"""Limits of keys, users, teams and organizations: set and removed."""

from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.admin.authority import Authority
from gateway.api.quotas import NewQuota, remove_quota, set_quota
from gateway.console.access import Manager, Visitor
from gateway.console.browser import own_path
from gateway.console.forms import Form, read_form
from gateway.console.pages.keys.fields import LimitForm, LimitGone, Plain
from gateway.console.pages.keys.form_submission import submit
from gateway.console.renderer import go, page

router = APIRouter(prefix="/limits")

KINDS = (
    ("spend month", "USD per month"),
    ("spend day", "USD per day"),
    ("requests minute", "requests per minute"),
    ("requests day", "requests per day"),
    ("requests month", "requests per month"),
    ("tokens minute", "tokens per minute"),
    ("tokens day", "tokens per day"),
    ("tokens month", "tokens per month"),
    ("concurrency", "concurrent requests"),
)
"""The metrics that a form offers, with their labels."""


@router.get("/new")
async def ask(visitor: Manager, scope: Plain = "", organization: Plain = "", team: Plain = "") -> Response:
    """Show the form for a limit of a key, user, team or organization. Raises NotFound for an unknown scope."""
    if team:
        scope = f"team:{organization}/{team.strip()}"
    return _page(visitor, scope, Form.showing(scope=scope, kind="spend month"))


@router.post("/new")
async def set_limit(request: Request, visitor: Manager, scope: Plain) -> Response:
    form = await read_form(request, visitor, LimitForm)
    _, form = await submit(form, lambda fields: set_limit_of(visitor.authority, fields))
    if form.value is None:
        return _page(visitor, scope, form, 400)
    return go(visitor, place_of(scope), "Limit set.")


@router.post("/remove")
async def remove_limit(request: Request, visitor: Manager) -> Response:
    form = await read_form(request, visitor, LimitGone)
    gone, form = await submit(form, lambda gone: _removed(visitor.authority, gone))
    scope = form.text("scope")
    if gone is None:
        return _page(visitor, scope, Form(errors=form.errors, given={"scope": [scope]}), 400)
    return go(visitor, place_of(scope), "Limit removed.")


def set_limit_of(authority: Authority, fields: LimitForm) -> dict[str, Any]:
    quota = NewQuota(
        scope=fields.scope, measure=fields.measure, span=fields.span, model=fields.model, amount=fields.amount
    )
    return set_quota(authority, quota)


def _removed(authority: Authority, gone: LimitGone) -> dict[str, Any]:
    return remove_quota(authority, gone.scope, gone.measure, gone.span, gone.model)


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
    back = place_of(scope)
    return page("keys/limit.html", visitor, status, form=form, scope=scope, kinds=KINDS, back=back, tab="keys")
