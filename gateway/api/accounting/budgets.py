"""/accounting/v1/budgets: daily and monthly spending limits of keys, users, teams and organizations."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query

from accounting.money import UsdAmount, format_usd
from gateway.admin.fields import Body, Facts, Text
from gateway.admin.limits import (
    BUDGETS_MAX,
    LimitName,
    NewLimit,
    Scope,
    budget_facts,
    list_budgets,
    remove_limit,
    set_limit,
)
from gateway.api.accounting.dependencies import Key
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import AnyCaller, Manager
from gateway.app_state import Ledger
from gateway.parameters import OptionalText
from gateway.quota import Span

router = APIRouter(prefix="/accounting/v1/budgets", route_class=KeyedRoute)

Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=BUDGETS_MAX)]


class NewBudget(Body):
    """The scope cannot use paid lanes if they would cost more than this in a day or a month (UTC)."""

    scope: Scope
    span: Span
    amount: UsdAmount
    model: Text | None = None


@router.get("")
async def show_budgets(
    authority: AnyCaller,
    ledger: Ledger,
    scope: OptionalText = None,
    offset: Offset = 0,
    limit: Limit = BUDGETS_MAX,
) -> Facts:
    """List budgets of the caller's key; for admins those of their own scopes, or with `all` all limits.

    `next` is the `offset` of the next page.
    """
    found, place = await ledger.look(
        lambda session: list_budgets(session, authority, scope, offset=offset, limit=limit)
    )
    return {"data": found, "next": place}


@router.put("")
async def set_budget(authority: Manager, ledger: Ledger, _: Key, body: NewBudget) -> Facts:
    """Set a budget; it replaces the one with the same scope, span and model."""
    new = NewLimit(
        scope=body.scope, measure="spend", span=body.span, model=body.model, amount=format_usd(body.amount)
    )
    quota = await asyncio.to_thread(set_limit, authority, new)
    return await ledger.look(lambda session: budget_facts(session, quota))


@router.delete("")
async def remove_budget(
    authority: Manager, scope: Annotated[Scope, Query()], span: Span, model: Text | None = None
) -> dict[str, Any]:
    """Remove a budget."""
    await asyncio.to_thread(
        remove_limit, authority, LimitName(scope=scope, measure="spend", span=span, model=model)
    )
    return {"removed": {"scope": scope, "span": span, "model": model}}
