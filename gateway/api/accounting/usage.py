"""/accounting/v1/usage: requests and their cost, in groups, as JSON or CSV."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from gateway.api.accounting.dependencies import Form, is_operator, scope_of, sheet
from gateway.api.authority import AnyCaller, Authority
from gateway.api.fields import OptionalText, Since, as_ns
from gateway.billing.usage_report import DAY_NS, DAYS, GROUPS_MAX, columns, group_names, usage_report

router = APIRouter(prefix="/accounting/v1")

LIMIT_MAX = GROUPS_MAX - 1

By = Annotated[str, Query(max_length=100, description="Names between commas.")]
Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]


@router.get("/usage")
async def show_usage(
    authority: AnyCaller,
    by: By = "day,model",
    since: Since = None,
    until: Since = None,
    scope: OptionalText = None,
    offset: Offset = 0,
    limit: Limit = LIMIT_MAX,
    format: Form = "json",  # noqa: A002 - the query's own name
) -> Response:
    """Show the caller's usage, by default of the last 30 days; for admins that of their own scopes.

    Scopes are those of limits. Instance admins may ask for `all`. `next` is the `offset` of the next page.
    """
    names, with_costs = group_names(by), is_operator(authority)
    until_ns = as_ns(until) or time.time_ns() + 1
    since_ns = as_ns(since)
    found = await authority.services.ledger.look(
        lambda session: usage_report(
            session,
            names,
            _scope(authority, scope),
            since_ns=until_ns - DAYS * DAY_NS if since_ns is None else since_ns,
            until_ns=until_ns,
            offset=offset,
            limit=limit + 1,
            with_costs=with_costs,
        )
    )
    rows, after = found[:limit], offset + limit if len(found) > limit else None
    if format == "csv":
        return sheet("usage", columns(names, with_costs=with_costs), [list(row.values()) for row in rows], after)
    return JSONResponse({"data": rows, "next": after})


def _scope(authority: Authority, scope: str | None) -> str | None:
    """Return the scope; None means the usage of all users."""
    if scope is None and authority.caller is not None:
        return f"user:{authority.caller.user_id}"
    return None if scope is None else scope_of(authority, scope)
