"""/accounting/v1/budgets: daily and monthly spending limits of keys, users, teams and organizations."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.orm import Session

from accounting.money import UsdAmount
from gateway.admin.authority import scope_of
from gateway.admin.fields import Body, Facts, Text
from gateway.admin.parameters import OptionalText
from gateway.api.accounting.dependencies import Key
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import AnyCaller, Manager
from gateway.api.quotas import refuse_own
from gateway.identity.quotas import of_scopes
from gateway.limits.budgets import budget_facts
from gateway.pages import cut
from gateway.quota import Quota

router = APIRouter(prefix="/accounting/v1/budgets", route_class=KeyedRoute)

Scope = Annotated[str, Field(max_length=200, pattern=r"^(key|user|team|organization):[^\x00]+$")]
BudgetSpan = Literal["day", "month"]
LIMIT_MAX = 100
Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]


class NewBudget(Body):
    """The scope cannot use paid lanes if they would cost more than this in a day or a month (UTC)."""

    scope: Scope
    span: BudgetSpan
    amount: UsdAmount
    model: Text | None = None


@router.get("")
async def list_budgets(
    authority: AnyCaller, scope: OptionalText = None, offset: Offset = 0, limit: Limit = LIMIT_MAX
) -> Facts:
    """List budgets of the caller's key; for admins those of their own scopes, or with `all` all limits.

    `next` is the `offset` of the next page.
    """

    def read(session: Session) -> Facts:
        # Each budget reads usage rows, so the page size is limited.
        shown, last = cut(_found(authority, session, scope, offset, limit + 1), limit)
        return {
            "data": [budget_facts(session, quota) for quota in shown],
            "next": offset + limit if last else None,
        }

    return await authority.services.ledger.look(read)


def _found(authority: AnyCaller, session: Session, scope: str | None, offset: int, limit: int) -> list[Quota]:
    allowed = None if scope is None else scope_of(authority, scope)
    if allowed is not None:
        found = of_scopes(session, (allowed,))
    elif scope is None and authority.caller is not None:
        found = list(authority.caller.quotas)
    else:
        return authority.directory.quotas.rows(measure="spend", offset=offset, limit=limit)
    return [quota for quota in found if quota.measure == "spend"][offset : offset + limit]


@router.put("")
async def set_budget(authority: Manager, _: Key, body: NewBudget) -> Facts:
    """Set a budget; it replaces the one with the same scope, span and model."""
    quota = Quota(body.scope, "spend", body.amount, body.span, body.model)

    def change() -> None:
        refuse_own(authority, quota.scope)
        authority.directory.quotas.set(quota, authority.actor)
        authority.services.keys.catch_up()

    await asyncio.to_thread(change)
    return await authority.services.ledger.look(lambda session: budget_facts(session, quota))


@router.delete("")
async def remove_budget(
    authority: Manager, scope: Annotated[Scope, Query()], span: BudgetSpan, model: OptionalText = None
) -> dict[str, Any]:
    """Remove a budget."""
    quota = Quota(scope, "spend", 0, span, model or None)

    def change() -> None:
        refuse_own(authority, quota.scope)
        authority.directory.quotas.remove(quota, authority.actor)
        authority.services.keys.catch_up()

    await asyncio.to_thread(change)
    return {"removed": {"scope": scope, "span": span, "model": model}}
