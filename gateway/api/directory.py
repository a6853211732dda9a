"""/admin: keys, users, organizations, limits, the audit log, and a caller's own keys, limits and usage."""

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from accounting.metering.usage import UsageTotal, usage_totals
from accounting.money import format_usd
from gateway.admin import keys, limits, users
from gateway.admin.fields import as_ns
from gateway.admin.keys import ChangedKey, NewKey, Rotation
from gateway.admin.limits import LimitName, NewLimit
from gateway.admin.users import NewOrganization, NewRole, NewUser
from gateway.api.accounting.dependencies import UserCaller
from gateway.api.authority import AnyCaller, Manager, Operator
from gateway.identity import audit
from gateway.identity.key_queries import usage_of
from gateway.identity.quotas import facts
from gateway.pages import PAGE_MAX
from gateway.parameters import Named, OptionalText, PageCursor, PageLimit, Since

router = APIRouter()

_DAY_NS = 86_400 * 10**9


@router.get("/keys")
def list_keys(
    authority: Manager,
    organization: OptionalText = None,
    user: OptionalText = None,
    before: PageCursor = None,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List keys that the caller administers, without their secrets, newest first.

    `next` is the `before` of the next page, null on the last one.
    """
    found, place = keys.list_keys(authority, organization, user, before=before, limit=limit)
    return {"keys": [row.facts() for row in found], "next": place}


@router.post("/keys")
def create_key(authority: Manager, body: NewKey) -> dict[str, Any]:
    """Create a key; only this answer has its secret."""
    return keys.create_key(authority, body).facts()


@router.patch("/keys/{key}")
def change_key(authority: Manager, key: Named, body: ChangedKey) -> dict[str, Any]:
    """Change the restrictions of a key; null removes one."""
    return keys.change_key(authority, key, body).facts()


@router.post("/keys/{key}/rotate")
def rotate_key(authority: Manager, key: Named, body: Rotation) -> dict[str, Any]:
    """Rotate a key; the old secret stays valid for the grace period."""
    return keys.rotate_key(authority, key, body).facts()


@router.delete("/keys/{key}")
def revoke_key(authority: Manager, key: Named) -> dict[str, Any]:
    """Revoke a key."""
    return {"revoked": keys.revoke_key(authority, key)}


@router.get("/organizations")
def list_organizations(authority: Manager) -> list[dict[str, Any]]:
    """List organizations that the caller administers."""
    return [asdict(one) for one in users.list_organizations(authority)]


@router.post("/organizations")
def add_organization(authority: Operator, body: NewOrganization) -> dict[str, Any]:
    """Add an organization."""
    return asdict(users.add_organization(authority, body))


@router.get("/users")
def list_users(
    authority: Manager,
    organization: OptionalText = None,
    removed: bool = False,
    after: PageCursor = None,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List users whom the caller administers, oldest first; with `removed` also removed ones.

    `next` is the `after` of the next page, null on the last one.
    """
    found, place = users.list_users(authority, organization, removed=removed, after=after, limit=limit)
    return {"users": [asdict(user) for user in found], "next": place}


@router.post("/users")
def add_user(authority: Manager, body: NewUser) -> dict[str, Any]:
    """Add a user to an organization."""
    return asdict(users.add_user(authority, body))


@router.patch("/users/{user}")
def set_role(authority: Manager, user: Named, body: NewRole) -> dict[str, Any]:
    """Give a user another role."""
    return asdict(users.set_role(authority, user, body))


@router.delete("/users/{user}")
def remove_user(authority: Manager, user: Named) -> dict[str, Any]:
    """Remove a user and revoke keys and sessions; account and usage stay."""
    users.remove_user(authority, user)
    return {"removed": user}


@router.delete("/users/{user}/sessions")
def close_sessions(authority: Manager, user: Named) -> dict[str, Any]:
    """Sign a user out of the console everywhere."""
    return {"closed": users.close_sessions(authority, user)}


@router.get("/quotas")
def list_quotas(
    authority: Manager,
    organization: OptionalText = None,
    offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List limits of the organizations that the caller administers, by scope.

    `next` is the `offset` of the next page, null on the last one.
    """
    found, place = limits.list_limits(authority, organization, offset=offset, limit=limit)
    return {"quotas": [facts(quota) for quota in found], "next": place}


@router.put("/quotas")
def set_quota(authority: Manager, body: NewLimit) -> dict[str, Any]:
    """Set a limit; it replaces the one with the same scope, measure, span and model."""
    return facts(limits.set_limit(authority, body))


@router.delete("/quotas")
def remove_quota(authority: Manager, name: Annotated[LimitName, Query()]) -> dict[str, Any]:
    """Remove a limit."""
    limits.remove_limit(authority, name)
    return {"removed": name.model_dump()}


@router.get("/audit")
def show_audit(
    authority: Manager,
    organization: OptionalText = None,
    action: OptionalText = None,
    actor: OptionalText = None,
    target: OptionalText = None,
    since: Since = None,
    until: Since = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=audit.PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """List actions of admins, newest first. `next` is the `before` of the next page, null on the last one."""
    filters = audit.Filter(authority.within(organization), action, actor, target, as_ns(since), as_ns(until))
    found = authority.directory.audit.entries(filters, before_seq=before, limit=limit)
    return {
        "entries": [asdict(entry) for entry in found],
        "next": found[-1].seq if len(found) == limit else None,
    }


@router.get("/me")
def show_me(authority: AnyCaller, caller: UserCaller) -> dict[str, Any]:
    """Show the key's user, its restrictions, and every limit that applies to it."""
    return {
        "user": asdict(authority.directory.users.user(caller.user_id)),
        "key": authority.directory.keys.row(caller.key_id).facts(),
        "quotas": [facts(quota) for quota in caller.quotas],
    }


@router.get("/me/keys")
def show_my_keys(
    authority: AnyCaller, caller: UserCaller, before: PageCursor = None, limit: PageLimit = PAGE_MAX
) -> dict[str, Any]:
    """List the caller's keys without their secrets, newest first; `next` is the `before` of the next page."""
    found, place = keys.list_keys(authority, user_id=caller.user_id, before=before, limit=limit)
    return {"keys": [row.facts() for row in found], "next": place}


@router.delete("/me/keys/{key}")
def revoke_my_key(authority: AnyCaller, caller: UserCaller, key: Named) -> dict[str, Any]:
    """Revoke the key that sends this request, for example after a leak."""
    return {"revoked": keys.revoke_own_key(authority, caller, key)}


@router.get("/me/usage")
def show_my_usage(
    authority: AnyCaller, caller: UserCaller, days: Annotated[int, Query(ge=1, le=366)] = 30
) -> list[dict[str, Any]]:
    """Show the caller's usage by UTC day and model, over the last `days`."""
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
