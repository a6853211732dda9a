"""/admin/quotas: limits of keys, users, teams and organizations."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Text
from gateway.admin.parameters import OptionalText, PageLimit
from gateway.api.authority import Manager
from gateway.errors import RoleForbids
from gateway.identity.quotas import facts, parse_quota
from gateway.pages import PAGE_MAX, cut
from gateway.quota import Measure, Span

router = APIRouter(prefix="/quotas")

Scope = Annotated[str, Field(max_length=200, pattern=r"^(key|user|team|organization):[^\x00]+$")]


class NewQuota(Body):
    """`amount` is a decimal string: dollars for spend, otherwise a whole number."""

    scope: Scope
    measure: Measure
    span: Span | None = None
    model: Text | None = None
    amount: Annotated[str, Field(max_length=40)]


@router.get("")
def list_quotas(
    authority: Manager,
    organization: OptionalText = None,
    offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List limits of the organizations that the caller administers, by scope.

    `next` is the `offset` of the next page, null on the last one.
    """
    within = authority.within(organization)
    found = authority.directory.quotas.rows(within, offset=offset, limit=limit + 1)
    shown, last = cut(found, limit)
    return {"quotas": [facts(quota) for quota in shown], "next": offset + limit if last else None}


@router.put("")
def set_quota(authority: Manager, body: NewQuota) -> dict[str, Any]:
    """Set a limit; it replaces the one with the same scope, measure, span and model."""
    quota = parse_quota(body.scope, body.measure, body.amount, body.span, body.model)
    refuse_own(authority, quota.scope)
    authority.directory.quotas.set(quota, authority.actor)
    authority.services.keys.catch_up()
    return facts(quota)


@router.delete("")
def remove_quota(
    authority: Manager,
    scope: Annotated[Scope, Query()],
    measure: Measure,
    span: Span | None = None,
    model: OptionalText = None,
) -> dict[str, Any]:
    """Remove a limit."""
    quota = parse_quota(scope, measure, "0", span, model)
    refuse_own(authority, scope)
    authority.directory.quotas.remove(quota, authority.actor)
    authority.services.keys.catch_up()
    return {"removed": {"scope": scope, "measure": measure, "span": span, "model": model}}


def refuse_own(authority: Authority, scope: str) -> None:
    """Check who may set it: only instance admins set an organization's own limits.

    Raises NotFound, RoleForbids.
    """
    authority.over(authority.directory.quotas.organization_of(scope), scope.replace(":", " ", 1))
    if authority.organization_id is not None and scope.startswith("organization:"):
        raise RoleForbids("An organization's limits are set by instance admins.", param="scope")
