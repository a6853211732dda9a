"""One key: creating it, with its secret shown once; its permissions and usage; changing, rotating and revoking it."""

import asyncio
from typing import Any, get_args

from fastapi import APIRouter, Response

from gateway.admin.authority import Authority
from gateway.admin.keys import Rotation, change_key, create_key, revoke_key, revoke_own_key, rotate_key
from gateway.admin.limits import NewLimit, set_limit
from gateway.app_state import Lanes
from gateway.console.access import Manager, Viewer, Visitor
from gateway.console.forms import Form, NoFields, pressed, submit_to
from gateway.console.pages.keys.fields import ChangedKeyForm, NewKeyForm, RotationForm
from gateway.console.pages.keys.figures import KeyLine, key_lines, limit_lines
from gateway.console.renderer import go, page
from gateway.identity.audit import Filter
from gateway.identity.key_rows import KeyRow
from gateway.identity.quotas import parse_quota, scopes_of
from gateway.parameters import Named
from gateway.settings.base import LaneName
from runtime.errors import NotFound, RequestInvalid, ServiceError

router = APIRouter()

_KEY = "/key/{key_id}"

_CHANGES_SHOWN = 8
# With more users than this, the form has a text field instead of a list.
USERS_OFFERED = 200


@router.get(_KEY)
async def show_key(visitor: Viewer, key_id: Named) -> Response:
    return await _page(visitor, key_id)


@router.post(f"{_KEY}/change")
async def change(visitor: Manager, key_id: Named) -> Response:
    changed, form = await submit_to(visitor, ChangedKeyForm, lambda by, fields: change_key(by, key_id, fields))
    if changed is None:
        return await _page(visitor, key_id, form, 400)
    return go(
        visitor,
        f"/console/keys/key/{key_id}",
        "Key changed. The change takes effect everywhere within five seconds.",
    )


@router.post(f"{_KEY}/rotate")
async def rotate(visitor: Manager, lanes: Lanes, key_id: Named) -> Response:
    def work(by: Authority, fields: RotationForm) -> dict[str, Any]:
        return rotate_key(by, key_id, Rotation(grace_s=fields.grace_hours * 3600)).facts()

    made, form = await submit_to(visitor, RotationForm, work)
    if made is None:
        return await _page(visitor, key_id, rotation=form, status=400)
    return shown_once(visitor, lanes, made, rotated=True)


@router.post(f"{_KEY}/revoke")
async def revoke(visitor: Viewer, key_id: Named) -> Response:
    """Revoke a key: admins any key they manage, other users their own. Raises NotFound, RoleForbids."""
    if visitor.may_administer:
        _, form = await submit_to(visitor, NoFields, lambda by, _: revoke_key(by, key_id))
        if form.value is None:
            return await _page(visitor, key_id, Form(errors=form.errors), 400)
    else:
        await pressed(visitor)
        await asyncio.to_thread(revoke_own_key, visitor.authority, visitor.caller, key_id)
    return go(visitor, "/console/keys", "Key revoked.")


def shown_once(
    visitor: Visitor, lanes: Lanes, made: dict[str, Any], *, rotated: bool = False, warning: str = ""
) -> Response:
    """Show the key's secret once; it cannot be looked up later."""
    models = sorted({model for name in made["lanes"] if name in lanes for model in lanes[name].models()})
    model = next((name for name in models if made["models"] is None or name in made["models"]), "MODEL")
    return page(
        "keys/once.html",
        visitor,
        made=made,
        rotated=rotated,
        warning=warning,
        model=model,
        tab="keys",
    )


async def _page(
    visitor: Visitor,
    key_id: str,
    form: Form[ChangedKeyForm] | None = None,
    status: int = 200,
    rotation: Form[RotationForm] | None = None,
) -> Response:
    values = await asyncio.to_thread(_look, visitor, key_id)
    row: KeyRow = values["line"].row
    return page(
        "keys/one.html",
        visitor,
        status,
        form=form or _as_it_is(row),
        rotation=rotation or Form(),
        lanes=get_args(LaneName),
        tab="keys",
        **values,
    )


def _as_it_is(row: KeyRow) -> Form[ChangedKeyForm]:
    terms = row.terms
    return Form.showing(
        lanes=row.lanes,
        models=", ".join(terms.models or ()),
        regions=", ".join(terms.regions or ()),
        privacy=terms.privacy,
        priority=terms.priority,
        may_administer=terms.may_administer,
    )


def _look(visitor: Visitor, key_id: str) -> dict[str, Any]:
    row = visible_key(visitor, key_id)
    owner = visitor.directory.users.ever(row.user_id)
    scopes = scopes_of(row.user_id, row.organization_id, row.department, key_id=row.key_id)
    here = {} if owner.removed_ns else {row.user_id: owner.name}
    with visitor.directory.read() as session:
        line: KeyLine = key_lines(session, [row], here)[0]
        limits = limit_lines(session, scopes)
    changes = visitor.directory.audit.entries(Filter(target=f"key:{row.key_id}"), limit=_CHANGES_SHOWN)
    may_set = visitor.may_administer
    is_own = row.user_id == visitor.caller.user_id and visitor.caller.key_id in ("", row.key_id)
    own = [one for one in limits if one.quota.scope == f"key:{row.key_id}"]
    return {
        "line": line,
        "user": owner,
        "limits": own,
        "inherited": [one for one in limits if one not in own],
        "changes": changes if visitor.is_manager else (),
        "may_set": may_set,
        "may_revoke": may_set or is_own,
        "opened_this": row.key_id == visitor.caller.key_id,
    }


def visible_key(visitor: Visitor, key_id: str) -> KeyRow:
    """Return the visitor's own key, or for admins one they manage. Raises NotFound for any other key."""
    row = visitor.directory.keys.row(key_id)
    if row.user_id != visitor.caller.user_id:
        if not visitor.is_manager:
            raise NotFound(f"Key {key_id} not found. It may belong to another organization.")
        visitor.authority.over(row.organization_id, f"key {key_id}")
    return row


@router.get("/new")
async def ask(visitor: Manager, user: str | None = None) -> Response:
    form: Form[NewKeyForm] = Form.showing(
        user=user or visitor.caller.user_id, lanes=visitor.directory.lanes, privacy="public", priority=0
    )
    return await _new_page(visitor, form)


@router.post("/new")
async def make(visitor: Manager, lanes: Lanes) -> Response:
    made, form = await submit_to(visitor, NewKeyForm, _made)
    if made is None:
        return await _new_page(visitor, form, 400)
    return shown_once(visitor, lanes, made, warning=made.pop("warning", ""))


def _made(authority: Authority, fields: NewKeyForm) -> dict[str, Any]:
    """Create the key, then its limit. An invalid amount is rejected before the key is created."""
    if fields.spend is not None:
        try:
            parse_quota("key:", "spend", fields.spend, "month", None)
        except RequestInvalid as error:
            raise RequestInvalid(error.message.removeprefix("amount: "), param="spend") from None
    made = create_key(authority, fields).facts()
    if fields.spend is not None:
        try:
            scope = f"key:{made['key_id']}"
            set_limit(authority, NewLimit(scope=scope, measure="spend", span="month", amount=fields.spend))
        except ServiceError as error:
            # The key exists, and its secret can be shown only now.
            made["warning"] = f"The key has no monthly budget yet: {error.message}"
    return made


async def _new_page(visitor: Visitor, form: Form[NewKeyForm], status: int = 200) -> Response:
    users, within = visitor.directory.users, visitor.authority.within(None)
    return page(
        "keys/new.html",
        visitor,
        status,
        form=form,
        users=await asyncio.to_thread(users.users, within, limit=USERS_OFFERED + 1),
        offered=USERS_OFFERED,
        lanes=get_args(LaneName),
        tab="keys",
    )
