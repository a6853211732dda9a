"""Your account: your identity, your password, and your sessions."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, model_validator

from gateway.console.access import Viewer, Visitor
from gateway.console.forms import Form, pressed, read_form, refused
from gateway.console.pages.keys.figures import limit_lines
from gateway.console.renderer import go, page
from gateway.errors import TooManyWrongKeys
from gateway.identity.quotas import scopes_of
from runtime.errors import KeyInvalid, NotFound, Overloaded, RequestInvalid

router = APIRouter(prefix="/account")

_HERE = "/console/keys/account"
_Secret = Annotated[str, Field(min_length=1, max_length=1000)]


class PasswordForm(BaseModel):
    old: _Secret
    new: _Secret
    again: _Secret

    @model_validator(mode="after")
    def _is_the_same_twice(self) -> "PasswordForm":
        if self.new != self.again:
            raise ValueError("the new passwords do not match")
        return self


class SessionForm(BaseModel):
    session: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@router.get("")
async def show_account(visitor: Viewer) -> Response:
    return await _page(visitor, Form())


@router.post("/password")
async def change_password(visitor: Viewer) -> Response:
    """Change the password. The old one is required in case the screen was left unlocked. Other sessions end."""
    form = await read_form(visitor, PasswordForm)
    if form.value is None:
        return await _page(visitor, form, 400)
    gate, user_id = visitor.directory.password_gate, visitor.caller.user_id
    try:
        ended = await gate.change(user_id, form.value.old, form.value.new, visitor.actor, visitor.who.session_id)
    except KeyInvalid:
        return await _page(visitor, form.refused("Wrong password.", "old"), 403)
    except RequestInvalid as error:
        return await _page(visitor, refused(form, error), 400)
    except (NotFound, Overloaded, TooManyWrongKeys) as error:
        return await _page(visitor, refused(form, error), 429 if isinstance(error, TooManyWrongKeys) else 409)
    others = "1 other session" if ended == 1 else f"{ended} other sessions"
    return go(visitor, _HERE, f"Password changed. {others} signed out.")


@router.post("/session")
async def end_session(visitor: Viewer) -> Response:
    """Sign one browser out. Raises NotFound for another user's session, or one that has ended."""
    form = await read_form(visitor, SessionForm)
    if form.value is None:
        raise NotFound("Session not found.")
    sessions, user_id = visitor.directory.sessions, visitor.caller.user_id
    if not await asyncio.to_thread(sessions.close_one, user_id, form.value.session, visitor.actor):
        raise NotFound("This session has already ended.")
    return go(visitor, _HERE, "Session signed out.")


@router.post("/sessions")
async def end_other_sessions(visitor: Viewer) -> Response:
    await pressed(visitor)
    sessions = visitor.directory.sessions

    def close() -> int:
        return sessions.close_all(visitor.caller.user_id, visitor.actor, but=visitor.who.session_id)

    ended = await asyncio.to_thread(close)
    return go(visitor, _HERE, f"{ended} other session{'' if ended == 1 else 's'} signed out.")


async def _page(visitor: Visitor, form: Form[PasswordForm], status: int = 200) -> Response:
    values = await asyncio.to_thread(_look, visitor)
    # The input is not sent back: the browser may store the page.
    blank: Form[PasswordForm] = Form(errors=form.errors)
    return page("keys/account.html", visitor, status, form=blank, tab="account", **values)


def _look(visitor: Visitor) -> dict[str, Any]:
    directory, caller = visitor.directory, visitor.caller
    scopes = scopes_of(caller.user_id, caller.organization_id, caller.department, key_id=caller.key_id)
    with directory.read() as session:
        limits = limit_lines(session, scopes)
    return {
        "user": directory.users.user(caller.user_id),
        "password_changed_ns": directory.passwords.changed_ns(caller.user_id),
        "sessions": directory.sessions.of_user(caller.user_id),
        "limits": limits,
    }
