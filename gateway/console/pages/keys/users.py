"""Users: a list with their ways to sign in; adding, changing roles, password links, removing."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.admin.fields import as_cursor
from gateway.admin.users import (
    NewRole,
    NewUser,
    add_user,
    close_sessions,
    list_organizations,
    managed_user,
    new_password_link,
    remove_user,
    set_role,
)
from gateway.console.access import Manager, Operator, Visitor
from gateway.console.browser import root_of
from gateway.console.forms import Form, NoFields, submit_to
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.keys.figures import key_lines, limit_lines
from gateway.console.renderer import go, page
from gateway.identity.passwords import LINK_LASTS_S, address_of
from gateway.pages import CURSOR_MAX, Cursor, page_of
from gateway.parameters import Named

router = APIRouter(prefix="/users")

_KEYS_SHOWN = 20
_PAGE_ROWS = 100


@router.get("")
async def show_users(
    visitor: Manager, text: Plain = "", after: Annotated[str, Query(max_length=CURSOR_MAX)] = ""
) -> Response:
    """Show the list. Raises RequestInvalid."""
    form: Form[NewUser] = Form.showing(role="member", organization=visitor.caller.organization_id)
    return await _list(visitor, form, text=text.strip(), after=after)


@router.post("")
async def add(visitor: Manager) -> Response:
    made, form = await submit_to(visitor, NewUser, add_user)
    if made is None:
        return await _list(visitor, form, 400)
    return go(visitor, f"/console/keys/users/{made.user_id}", f"{made.name} added.")


@router.get("/{user}")
async def show_user(visitor: Manager, user: Named) -> Response:
    return await _one(visitor, user)


@router.post("/{user}/role")
async def change_role(visitor: Manager, user: Named) -> Response:
    changed, form = await submit_to(visitor, NewRole, lambda by, fields: set_role(by, user, fields))
    if changed is None:
        return await _one(visitor, user, form, 400)
    return go(visitor, f"/console/keys/users/{user}", f"{user} is now a {changed.role}.")


@router.post("/{user}/remove")
async def remove(visitor: Manager, user: Named) -> Response:
    _, form = await submit_to(visitor, NoFields, lambda by, _: remove_user(by, user))
    if form.value is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return go(visitor, "/console/keys/users", f"{user} was removed. Keys and sessions revoked.")


@router.post("/{user}/sessions")
async def end_sessions(visitor: Manager, user: Named) -> Response:
    ended, form = await submit_to(visitor, NoFields, lambda by, _: close_sessions(by, user))
    if ended is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return go(visitor, f"/console/keys/users/{user}", f"{user} was signed out everywhere.")


@router.post("/{user}/password")
async def make_link(request: Request, visitor: Operator, user: Named) -> Response:
    link, form = await submit_to(visitor, NoFields, lambda by, _: new_password_link(by, user))
    if link is None:
        return await _one(visitor, user, Form(errors=form.errors), 400)
    return await _one(visitor, user, link=address_of(link, root_of(request)))


async def _list(
    visitor: Visitor, form: Form[NewUser], status: int = 200, *, text: str = "", after: str = ""
) -> Response:
    values = await asyncio.to_thread(_look, visitor, text, as_cursor(after or None, "after"))
    values |= {"text": text, "is_first": not after}
    return page("keys/users.html", visitor, status, form=form, tab="users", **values)


def _look(visitor: Visitor, text: str, after: Cursor | None) -> dict[str, Any]:
    directory, within = visitor.directory, visitor.authority.within(None)
    shown, place = page_of(directory.users.users(within, text, after=after, limit=_PAGE_ROWS + 1), _PAGE_ROWS)
    return {
        "users": shown,
        "found": directory.users.count(within, text),
        "next": place,
        "organizations": list_organizations(visitor.authority),
        "keys_of": directory.keys.opening("user_id", [user.user_id for user in shown]),
        "with_password": directory.passwords.user_ids(),
    }


async def _one(
    visitor: Visitor, user_id: str, form: Form[NewRole] | None = None, status: int = 200, link: str = ""
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
        "sessions": directory.sessions.of_user(user_id),
        "password_changed_ns": directory.passwords.changed_ns(user_id),
        "may_set": visitor.may_administer,
    }
