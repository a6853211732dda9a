"""Limits of keys, users, teams and organizations; limits on money are their budgets."""

import time
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from accounting.money import format_usd
from gateway.admin.authority import Authority, refuse_who_may_not, scope_of
from gateway.admin.fields import Body, Facts, Text
from gateway.errors import RoleForbids
from gateway.identity.quotas import of_scopes, parse_quota
from gateway.limits.counters import CounterKey
from gateway.limits.past_use import used_in
from gateway.limits.windows import window
from gateway.pages import PAGE_MAX, page_at
from gateway.quota import Measure, Quota, Span
from runtime.times import at

BUDGETS_MAX = 100
"""Each budget reads usage rows, so a page has fewer of them."""

Scope = Annotated[str, Field(max_length=200, pattern=r"^(key|user|team|organization):[^\x00]+$")]


class LimitName(Body):
    """What identifies a limit: it replaces an earlier one with the same scope, measure, span and model."""

    scope: Scope
    measure: Measure
    span: Span | None = None
    model: Text | None = None


class NewLimit(LimitName):
    """`amount` is a decimal string: dollars for spend, otherwise a whole number."""

    amount: Annotated[str, Field(max_length=40)]


def set_limit(authority: Authority, new: NewLimit) -> Quota:
    """Set a limit. Raises RoleForbids, NotFound, and RequestInvalid if measure, span and amount do not match."""
    quota = parse_quota(new.scope, new.measure, new.amount, new.span, new.model)
    _refuse_own(authority, quota.scope)
    authority.directory.quotas.set(quota, authority.actor)
    authority.directory.keys.catch_up()
    return quota


def remove_limit(authority: Authority, name: LimitName) -> None:
    """Remove a limit. Raises RoleForbids, RequestInvalid, and NotFound if there is none."""
    quota = parse_quota(name.scope, name.measure, "0", name.span, name.model)
    _refuse_own(authority, quota.scope)
    authority.directory.quotas.remove(quota, authority.actor)
    authority.directory.keys.catch_up()


def list_limits(
    authority: Authority, organization: str | None = None, *, offset: int = 0, limit: int = PAGE_MAX
) -> tuple[Sequence[Quota], int | None]:
    """Return a page of the limits that the caller administers, by scope, and the offset of the next page.

    Raises RoleForbids, NotFound.
    """
    refuse_who_may_not(authority.caller)
    within = authority.within(organization)
    return page_at(authority.directory.quotas.rows(within, offset=offset, limit=limit + 1), offset, limit)


def limits_of(authority: Authority, scope: str) -> Sequence[Quota]:
    """Return the limits of one scope that the caller may see. Raises RequestInvalid, NotFound, RoleForbids."""
    scope_of(authority, scope)
    return authority.directory.quotas.of((scope,))


def list_budgets(
    session: Session, authority: Authority, scope: str | None = None, *, offset: int = 0, limit: int = BUDGETS_MAX
) -> tuple[list[Facts], int | None]:
    """Return a page of budgets with the amounts spent and left, and the offset of the next page.

    They are those of a scope that the caller may see, or with the scope `all` those of everyone. Without a scope they
    are those that apply to the caller's key, and for the machine's own token again those of everyone.
    Raises RequestInvalid, NotFound, RoleForbids.
    """
    if scope is None:
        own = authority.caller.quotas if authority.caller else None
    else:
        allowed = scope_of(authority, scope)
        own = None if allowed is None else tuple(of_scopes(session, (allowed,)))
    if own is None:
        found = authority.directory.quotas.rows(measure="spend", offset=offset, limit=limit + 1)
    else:
        found = [quota for quota in own if quota.measure == "spend"][offset : offset + limit + 1]
    shown, place = page_at(found, offset, limit)
    return [budget_facts(session, quota) for quota in shown], place


def budget_facts(session: Session, quota: Quota) -> Facts:
    """A limit on money in this day or month (UTC); running requests are not included yet."""
    assert quota.span, "spend is limited in a span"
    begin_s, end_s = window(quota.span, time.time())
    spent_nano = used_in(session, CounterKey.of(quota), begin_s)
    return {
        "scope": quota.scope,
        "span": quota.span,
        "model": quota.model,
        "amount": format_usd(quota.amount),
        "spent": format_usd(spent_nano),
        "left": format_usd(max(0, quota.amount - spent_nano)),
        "resets_at": at(end_s * 10**9),
    }


def scope_named(authority: Authority, text: str) -> str:
    """Return a scope as commands take it: a key may be given by its id or prefix. Raises NotFound, Conflict."""
    return text if ":" in text else f"key:{authority.directory.keys.row(text).key_id}"


def _refuse_own(authority: Authority, scope: str) -> None:
    """Check who may set it: only instance admins set an organization's own limits. Raises NotFound, RoleForbids."""
    refuse_who_may_not(authority.caller)
    authority.over(authority.directory.quotas.organization_of(scope), scope.replace(":", " ", 1))
    if authority.organization_id is not None and scope.startswith("organization:"):
        raise RoleForbids("An organization's limits are set by instance admins.", param="scope")
