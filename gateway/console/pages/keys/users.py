"""Users: a list with their ways to sign in; adding, changing roles, password links, removing."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.admin.parameters import Named
from gateway.api.users import NewRole, NewUser, add_user, close_sessions, managed_user, remove_user, set_role
from gateway.console.access import Manager, Operator, Visitor
from gateway.console.browser import root_of
from gateway.console.forms import Form, read_form
from gateway.console.pages.keys.browsers import shown_browser
from gateway.console.pages.keys.fields import NoFields, Plain, RoleForm, UserForm
from gateway.console.pages.keys.figures import key_lines, limit_lines
from gateway.console.pages.keys.form_submission import submit
from gateway.console.pages.keys.limits import KINDS
from gateway.console.renderer import go, page
from gateway.identity.passwords import LINK_LASTS_S, address_of
from gateway.pages import CURSOR_MAX, Cursor, cut

router = APIRouter(prefix="/users")

_KEYS_SHOWN = 20
_PAGE_ROWS = 100


@router.get("")
async def show_users(
    visitor: Manager, text: Plain = "", after: Annotated[str, Query(max_length=CURSOR_MAX)] = ""
) -> Response:
    """Show the list. Raises RequestInvalid."""
    form: Form[UserForm] = Form.showing(role="member", organization=visitor.caller.organization_id)
    return await _list(visitor, form, text=text.strip(), after=after)


@router.post("")
async def add(request: Request, visitor: Manager) -> Response:
    form = await read_form(request, visitor, UserForm)
    authority = visitor.authority
    made, form = await submit(form, lambda fields: add_user(authority, NewUser(**fields.model_dump())))
    if made is None:
        return await _list(visitor, form, 400)
    return go(visitor, f"/console/keys/users/{made['user_id']}", f"{made['name']} added.")


@router.get("/{user}")
async def show_user(visitor: Manager, user: Named) -> Response:
    return await _one(visitor, user)


@router.post("/{user}/role")
async def change_role(request: Request, visitor: Manager, user: Named) -> Response:
    form = await read_form(request, visitor, RoleForm)
    authority = visitor.authority
    changed, form = await submit(form, lambda fields: set_role(authority, user, NewRole(role=fields.role)))
    if changed is None:
        return await _one(visitor, user, form, 400)
    return go(visitor, f"/console/keys/users/{user}", f"{user} is now a {changed['role']}.")


@router.post("/{user}/remove")
async def remove(request: Request, visitor: Manager, user: Named) -> Response:
    form = await read_form(request, visitor, NoFields)
    authority = visitor.authority
    removed, form = await submit(form, lambda _: remove_user(authority, user))
    if removed is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return go(visitor, "/console/keys/users", f"{user} was removed. Keys and sessions revoked.")


@router.post("/{user}/sessions")
async def end_sessions(request: Request, visitor: Manager, user: Named) -> Response:
    form = await read_form(request, visitor, NoFields)
    authority = visitor.authority
    ended, form = await submit(form, lambda _: close_sessions(authority, user))
    if ended is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return go(visitor, f"/console/keys/users/{user}", f"{user} was signed out everywhere.")


@router.post("/{user}/password")
async def make_link(request: Request, visitor: Operator, user: Named) -> Response:
    """Create a password link. Anyone with it can sign in as that user, so only instance admins may create one."""
    form = await read_form(request, visitor, NoFields)
    link, form = await submit(form, lambda _: visitor.directory.passwords.new_link(user, visitor.actor))
    if link is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return await _one(visitor, user, link=address_of(link, root_of(request)))


async def _list(
    visitor: Visitor, form: Form[UserForm], status: int = 200, *, text: str = "", after: str = ""
) -> Response:
    values = await asyncio.to_thread(_look, visitor, text, Cursor.parse(after, "after") if after else None)
    values |= {"text": text, "is_first": not after}
    return page("keys/users.html", visitor, status, form=form, tab="users", **values)


def _look(visitor: Visitor, text: str, after: Cursor | None) -> dict[str, Any]:
    directory, within = visitor.directory, visitor.authority.within(None)
    organizations = [one for one in directory.users.organizations() if within in (None, one.organization_id)]
    found = directory.users.users(within, text, after=after, limit=_PAGE_ROWS + 1)
    shown, last = cut(found, _PAGE_ROWS)
    return {
        "users": shown,
        "found": directory.users.count(within, text),
        "next": str(last.cursor) if last else None,
        "organizations": organizations,
        "keys_of": directory.keys.opening("user_id", [user.user_id for user in shown]),
        "with_password": directory.passwords.user_ids(),
    }


async def _one(
    visitor: Visitor, user_id: str, form: Form[RoleForm] | None = None, status: int = 200, link: str = ""
) -> Response:
    values = await asyncio.to_thread(_look_at, visitor, user_id)
    user = values["user"]
    return page(
        "keys/user.html",
        visitor,
        status,
        form=form or Form.showing(role=user.role),
        link=link,
        link_minutes=LINK_LASTS_S // 60,
        kinds=dict(KINDS),
        tab="users",
        **values,
    )


def _look_at(visitor: Visitor, user_id: str) -> dict[str, Any]:
    directory, user = visitor.directory, managed_user(visitor.authority, user_id)
    keys = [row for row in directory.keys.rows(user_id=user_id) if row.revoked_ns is None]
    with directory.read() as session:
        lines = key_lines(session, keys[:_KEYS_SHOWN], {user_id: user.name})
        limits = limit_lines(session, [f"user:{user_id}"])
    return {
        "user": user,
        "lines": lines,
        "keys_count": len(keys),
        "limits": limits,
        "sessions": [(one, shown_browser(one.browser)) for one in directory.sessions.of_user(user_id)],
        "password_changed_ns": directory.passwords.changed_ns(user_id),
        "may_set": visitor.may_administer,
    }
