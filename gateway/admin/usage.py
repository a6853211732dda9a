"""Requests and their cost, in groups: what a caller may see of them."""

import time
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gateway.admin.authority import Authority, scope_of
from gateway.admin.fields import Facts
from gateway.billing.usage_report import DAY_NS, DAYS, GROUPS_MAX, columns, group_names, usage_report

LIMIT_MAX = GROUPS_MAX - 1


@dataclass(frozen=True, slots=True)
class Usage:
    """A page of groups; `next` is the offset of the next page, or None."""

    columns: tuple[str, ...]
    rows: list[Facts]
    next: int | None


def usage_in(
    session: Session,
    authority: Authority,
    by: str,
    scope: str | None,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    offset: int = 0,
    limit: int = LIMIT_MAX,
) -> Usage:
    """Return the caller's usage, by default of the last 30 days; for admins that of their own scopes.

    Instance admins may ask for `all`. Raises RequestInvalid, RoleForbids, NotFound.
    """
    names, with_costs = group_names(by), authority.is_operator
    until_ns = until_ns or time.time_ns() + 1
    found = usage_report(
        session,
        names,
        _scope(authority, scope),
        since_ns=until_ns - DAYS * DAY_NS if since_ns is None else since_ns,
        until_ns=until_ns,
        offset=offset,
        limit=limit + 1,
        with_costs=with_costs,
    )
    after = offset + limit if len(found) > limit else None
    return Usage(tuple(columns(names, with_costs=with_costs)), found[:limit], after)


def _scope(authority: Authority, scope: str | None) -> str | None:
    """Return the scope; None means the usage of all users."""
    if scope is None and authority.caller is not None:
        return f"user:{authority.caller.user_id}"
    return None if scope is None else scope_of(authority, scope)
