"""/admin/me: a caller's own keys, limits and usage."""

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from accounting.metering.usage import UsageTotal, usage_totals
from accounting.money import format_usd
from gateway.admin.authority import Authority
from gateway.admin.parameters import Named, PageCursor, PageLimit
from gateway.api.authority import AnyCaller
from gateway.api.keys import key_page
from gateway.errors import RoleForbids
from gateway.identity.caller import Caller
from gateway.identity.key_queries import usage_of
from gateway.identity.quotas import facts
from gateway.pages import PAGE_MAX
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix="/me")

_DAY_NS = 86_400 * 10**9


def _caller(authority: AnyCaller) -> tuple[Authority, Caller]:
    if authority.caller is None:
        raise RequestInvalid(
            "This credential belongs to no user. Send a user's key as 'Authorization: Bearer YOUR_KEY'."
        )
    return authority, authority.caller


Me = Annotated[tuple[Authority, Caller], Depends(_caller)]


@router.get("")
def show_me(me: Me) -> dict[str, Any]:
    """Show the key's user, its restrictions, and every limit that applies to it."""
    authority, caller = me
    return {
        "user": asdict(authority.directory.users.user(caller.user_id)),
        "key": authority.services.keys.row(caller.key_id).facts(),
        "quotas": [facts(quota) for quota in caller.quotas],
    }


@router.get("/keys")
def show_my_keys(me: Me, before: PageCursor = None, limit: PageLimit = PAGE_MAX) -> dict[str, Any]:
    """List the caller's keys without their secrets, newest first; `next` is the `before` of the next page."""
    authority, caller = me
    return key_page(authority, None, caller.user_id, before, limit)


@router.delete("/keys/{key}")
def revoke_my_key(me: Me, key: Named) -> dict[str, Any]:
    """Revoke the key that sends this request, for example after a leak."""
    authority, caller = me
    return {"revoked": revoke_own_key(authority, caller, key)}


@router.get("/usage")
def show_my_usage(me: Me, days: Annotated[int, Query(ge=1, le=366)] = 30) -> list[dict[str, Any]]:
    """Show the caller's usage by UTC day and model, over the last `days`."""
    authority, caller = me
    now_ns = time.time_ns()
    with authority.directory.read() as session:
        totals = usage_totals(
            session,
            ("day", "model"),
            since_ns=now_ns - days * _DAY_NS,
            until_ns=now_ns + 1,
            whose=usage_of(caller.user_id),
        )
    return [_total(total) for total in totals]


def revoke_own_key(authority: Authority, caller: Caller, key: str) -> str:
    """Revoke a key of the caller's by its id or prefix; returns its id.

    A caller with a key may revoke that key alone: it may have leaked, and the others belong to other
    applications. Raises NotFound, also for another user's key, and RoleForbids.
    """
    keys = authority.services.keys
    row = keys.row(key)
    if row.user_id != caller.user_id or row.revoked_ns is not None:
        raise NotFound(f"no active key of yours has the ID or prefix {key}")
    if caller.key_id not in ("", row.key_id):
        raise RoleForbids(
            "With a key you can revoke that key alone. Sign in to the console with a password or your identity "
            "provider to revoke your others, or ask an admin."
        )
    if not keys.revoke(row.key_id, authority.actor):
        raise NotFound(f"no active key of yours has the ID or prefix {key}")
    return row.key_id


def _total(total: UsageTotal) -> dict[str, Any]:
    day, model = total.group
    return {
        "day": day,
        "model": model,
        "requests": total.requests,
        "prompt_tokens": total.prompt_tokens,
        "cached_tokens": total.cached_tokens,
        "completion_tokens": total.completion_tokens,
        "charged_usd": format_usd(total.charge_nano),
    }
