"""Creating a key: its owner and permissions; its secret is shown once."""

import asyncio
from typing import Any, get_args

from fastapi import APIRouter, Response

from gateway.admin.authority import Authority
from gateway.admin.keys import create_key
from gateway.admin.limits import NewLimit, set_limit
from gateway.console.access import Manager, Visitor
from gateway.console.forms import Form, submit_to
from gateway.console.pages.keys.fields import NewKeyForm
from gateway.console.pages.keys.one import shown_once
from gateway.console.renderer import page
from gateway.identity.quotas import parse_quota
from gateway.settings.base import LaneName
from runtime.errors import RequestInvalid, ServiceError

# With more users than this, the form has a text field instead of a list.
USERS_OFFERED = 200

router = APIRouter(prefix="/new")


@router.get("")
async def ask(visitor: Manager, user: str | None = None) -> Response:
    lanes = visitor.services.settings.policy.lanes
    form: Form[NewKeyForm] = Form.showing(
        user=user or visitor.caller.user_id, lanes=lanes, privacy="public", priority=0
    )
    return await _page(visitor, form)


@router.post("")
async def make(visitor: Manager) -> Response:
    made, form = await submit_to(visitor, NewKeyForm, _made)
    if made is None:
        return await _page(visitor, form, 400)
    return shown_once(visitor, made, warning=made.pop("warning", ""))


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


async def _page(visitor: Visitor, form: Form[NewKeyForm], status: int = 200) -> Response:
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
